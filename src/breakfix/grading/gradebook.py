"""Grades that survive: one SQLite file, one transaction per submission, nothing ever changed or deleted.

verdicts   one for each content (lab, environment, file, seed): judged once, however many handed it in
grades     a line each time a student's file for a lab was graded; the last one counts, the rest is history
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from breakfix.verdict import Verdict

SCHEMA = 1
TABLES = """
CREATE TABLE IF NOT EXISTS verdicts (
    key TEXT PRIMARY KEY, lab TEXT NOT NULL, source BLOB NOT NULL, verdict TEXT NOT NULL, frame BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS grades (
    number INTEGER PRIMARY KEY, student TEXT NOT NULL, lab TEXT NOT NULL, key TEXT, state TEXT NOT NULL,
    points INTEGER NOT NULL, most INTEGER NOT NULL, kept_percent INTEGER NOT NULL, handed_in TEXT NOT NULL,
    place TEXT NOT NULL, trouble TEXT NOT NULL, graded TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_student ON grades (student, lab, number);
"""
MISSING = "missing"  # the state of a grade without a file


class BadGradebook(Exception):
    """A file that is no gradebook, or another version's; the message says what to do."""


@dataclass(frozen=True)
class Grade:
    """What one student's file for one lab was given, and when. Times are ISO 8601 texts, empty where unknown."""

    student: str
    lab: str
    key: str | None  # of its verdict
    state: str
    points: int  # before what the late policy takes
    most: int
    kept_percent: int = 100
    handed_in: str = ""
    place: str = ""
    trouble: str = ""
    graded: str = ""


_COLUMNS = ", ".join(f.name for f in fields(Grade))
_MARKS = ", ".join(f":{f.name}" for f in fields(Grade))
_INSERT = f"INSERT INTO grades ({_COLUMNS}) VALUES ({_MARKS})"


class Gradebook:
    """The file at `path`, made if it is not there. One process writes, any number may read. Raises BadGradebook."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")  # a grade that was shown is on the disk
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA):
                raise BadGradebook(f"{path} was written by another version of breakfix; use another folder")
            self._db.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version={SCHEMA}; COMMIT;")
        except sqlite3.DatabaseError as error:
            raise BadGradebook(f"{path} cannot be used as a gradebook: {error}") from None

    def record(self, grade: Grade, source: bytes = b"", verdict: Verdict | None = None) -> None:
        """Write a grade, and its verdict if that is new, in one transaction."""
        with self._transaction():
            if verdict is not None:
                self._keep(grade.key, grade.lab, source, verdict)
            self._db.execute(_INSERT, asdict(grade))

    def keep(self, key: str, lab: str, source: bytes, verdict: Verdict) -> None:
        """Write a verdict that is nobody's grade: on a lab's own file."""
        with self._transaction():
            self._keep(key, lab, source, verdict)

    def absorb(self, others: list["Gradebook"]) -> None:
        """Take over all verdicts and grades of other books, in the order of time; the same grade once."""
        grades = {grade: None for book in others for grade in book._select("ORDER BY number")}
        with self._transaction():
            for book in others:
                rows = book._db.execute("SELECT * FROM verdicts")
                self._db.executemany("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?, ?)", rows)
            self._db.executemany(_INSERT, map(asdict, sorted(grades, key=lambda grade: grade.graded)))

    def verdict(self, key: str | None) -> Verdict | None:
        """The verdict on a content, with its evidence."""
        row = self._db.execute("SELECT verdict, frame FROM verdicts WHERE key = ?", (key,)).fetchone()
        return Verdict.from_json(json.loads(row[0]), row[1]) if row else None

    def source(self, key: str | None) -> bytes:
        """The file that was judged."""
        row = self._db.execute("SELECT source FROM verdicts WHERE key = ?", (key,)).fetchone()
        return row[0] if row else b""

    def grades(self) -> Iterator[Grade]:
        """The grade that counts of each student and lab, by their names."""
        last = "number IN (SELECT max(number) FROM grades GROUP BY student, lab)"
        yield from self._select(f"WHERE {last} ORDER BY student, lab")

    def history(self, student: str, lab: str) -> list[Grade]:
        """All grades of a student's lab, the first one first."""
        return list(self._select("WHERE student = ? AND lab = ? ORDER BY number", student, lab))

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> "Gradebook":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All that is written within it, or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def _keep(self, key: str | None, lab: str, source: bytes, verdict: Verdict) -> None:
        row = (key, lab, source, json.dumps(verdict.to_json()), verdict.frame)
        self._db.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?)", row)

    def _select(self, where: str, *values: str) -> Iterator[Grade]:
        for row in self._db.execute(f"SELECT {_COLUMNS} FROM grades {where}", values):
            yield Grade(*row)
