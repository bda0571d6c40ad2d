"""Grades as other programs read them: CSV, JSON, JUnit XML, Gradescope, Canvas, Classroom 50.

Each format is one function from the gradebook's rows to text. A sum that does not fit raises BadSum before anything is
written; a name or a message that somebody chose cannot become a formula or markup.
"""

import csv
import io
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from xml.etree import ElementTree as xml

from breakfix.grading.gradebook import Grade
from breakfix.render.terminal import figure
from breakfix.verdict import FAILED, PASSED, CheckResult, Verdict

GRADESCOPE_STATES = {True: "passed", False: "failed"}
CLASSROOM_SCHEMA = "classroom50/result/v1"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what makes a spreadsheet compute a cell
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class BadSum(ValueError):
    """Points that cannot be right; the message says whose."""


class BadCanvas(ValueError):
    """A CSV that is not Canvas's export, or lacks the column; the message says what to do."""


@dataclass(frozen=True)
class Graded:
    """A grade and the verdict that it came of, if there was a file."""

    grade: Grade
    verdict: Verdict | None = None


def check_sums(rows: Iterable[Graded]) -> None:
    """Raise BadSum where the points are no whole number from 0 to the most."""
    for row in rows:
        g = row.grade
        if type(g.points) is not int or not 0 <= g.points <= g.most:
            raise BadSum(f"{g.student}, {g.lab}: {g.points!r} points of {g.most}")


def plain_csv(rows: list[Graded]) -> str:
    """One line per student and lab."""
    check_sums(rows)
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, [*asdict(rows[0].grade)] if rows else ["student"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _cell(v) for k, v in asdict(row.grade).items()} for row in rows)
    return out.getvalue()


def plain_json(rows: list[Graded]) -> str:
    """One object per student and lab, with the verdict: every check, every figure."""
    check_sums(rows)
    told = [asdict(r.grade) | {"verdict": r.verdict.to_json() if r.verdict else None} for r in rows]
    return json.dumps(told, indent=1, allow_nan=False) + "\n"


def junit(rows: list[Graded]) -> str:
    """JUnit XML (xunit2): a suite per student and lab, a case per check."""
    check_sums(rows)
    root = xml.Element("testsuites", name="breakfix")
    for row in rows:
        _suite(root, row)
    xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(root, encoding="unicode") + "\n"


def _suite(root: xml.Element, row: Graded) -> None:
    checks = row.verdict.checks if row.verdict else ()
    failed = [c for c in checks if not c.passed]
    counts = {"tests": max(1, len(checks)), "failures": len(failed), "errors": int(not checks), "skipped": 0}
    name = _text(f"{row.grade.student} {row.grade.lab}")
    suite = xml.SubElement(root, "testsuite", {"name": name} | {k: str(v) for k, v in counts.items()})
    for check in checks:
        case = xml.SubElement(suite, "testcase", classname=name, name=check.name)
        if not check.passed:
            xml.SubElement(case, "failure", message=_text(check.message)).text = _text(figures(check))
    if not checks:
        case = xml.SubElement(suite, "testcase", classname=name, name="judged")
        xml.SubElement(case, "error", message=_text(row.grade.state)).text = _text(why(row))


def gradescope(rows: list[Graded]) -> str:
    """results.json of one student's submission: a test per check."""
    check_sums(rows)
    tests = [test for row in rows for test in _gradescope_tests(row)]
    total = sum(row.grade.points * row.grade.kept_percent // 100 for row in rows)
    told = {"score": total, "visibility": "visible", "stdout_visibility": "hidden", "tests": tests}
    return json.dumps(told, indent=1, allow_nan=False) + "\n"


def _gradescope_tests(row: Graded) -> Iterable[dict]:
    worth = per_point(row)
    for check in row.verdict.checks if row.verdict else ():
        points = check.points * worth
        score = points if check.passed and row.verdict.state in (PASSED, FAILED) else 0
        output = f"{check.says}\n\n{figures(check)}".strip()
        yield {
            "name": f"{row.grade.lab}: {check.name}", "score": score, "max_score": points,
            "status": GRADESCOPE_STATES[check.passed], "output": output,
        }  # fmt: skip
    if not (row.verdict and row.verdict.checks):
        yield {
            "name": row.grade.lab, "score": 0, "max_score": row.grade.most, "status": "failed", "output": why(row),
        }  # fmt: skip


def per_point(row: Graded) -> int:
    """What a point of a check is worth in this assignment."""
    most = row.verdict.points[1] if row.verdict else 0
    return row.grade.most // most if most else 1


def classroom50(rows: list[Graded]) -> str:
    """result.json of one student's submission, by Classroom 50's contract: whole points, a test per check."""
    tests = [
        {"test-name": t["name"], "passed": t["status"] == "passed", "score": t["score"], "max-score": t["max_score"]}
        for t in json.loads(gradescope(rows))["tests"]
    ]
    told = {
        "schema": CLASSROOM_SCHEMA, "score": sum(t["score"] for t in tests),
        "max-score": sum(t["max-score"] for t in tests), "tests": tests,
    }  # fmt: skip
    return json.dumps(told, indent=1) + "\n"


def canvas(exported: str, rows: list[Graded], column: str, key: str = "SIS Login ID") -> str:
    """The CSV that was exported from Canvas, its `column` filled in for the students whose `key` has a grade.

    Whatever else it holds stays as it is. Raises BadCanvas.
    """
    check_sums(rows)
    table = list(csv.reader(io.StringIO(exported.removeprefix("\ufeff"), newline="")))
    header = table[0] if table else []
    if "Student" not in header or key not in header:
        raise BadCanvas(f"this is no gradebook export of Canvas: its first line has no Student, or no {key}")
    places = [
        i for i, name in enumerate(header) if name == column or re.fullmatch(re.escape(column) + r" \(\d+\)", name)
    ]
    if len(places) != 1:
        raise BadCanvas(f"{len(places)} columns are named {column!r}; there are: {', '.join(header)}")
    total: dict[str, int] = {}
    for row in rows:
        points = row.grade.points * row.grade.kept_percent // 100
        total[row.grade.student] = total.get(row.grade.student, 0) + points
    for line in table[1:]:
        student = line[header.index(key)] if len(line) == len(header) else ""
        if student in total:
            line[places[0]] = str(total[student])
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(table)
    return out.getvalue()


def why(row: Graded) -> str:
    """What there is to say where no check was asked."""
    return row.grade.trouble or (row.verdict.detail if row.verdict else "") or row.grade.state


def figures(check: CheckResult) -> str:
    """What a check looked at, a line each."""
    lines = [f"{'ok ' if f.holds else 'NOT'} {figure(f)}" for f in check.figures]
    return "\n".join(lines or ([] if check.passed else [check.message]))


def _cell(value):
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _text(text: str) -> str:
    return NOT_XML.sub("\ufffd", text)
