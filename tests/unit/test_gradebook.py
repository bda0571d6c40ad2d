"""Grades that survive: what was recorded is there after a kill at any moment, once, with its history."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from breakfix.grading.gradebook import BadGradebook, Grade, Gradebook
from breakfix.verdict import CheckResult, Figure, Verdict

GRADE = Grade("ada", "lab91", "k1", "failed", 4, 10)
CHECK = CheckResult("test_a", "failed", 6, figures=(Figure("error", float("nan"), "<=", 1.0),))
VERDICT = Verdict("lab91", "failed", 7, checks=(CHECK,), frame=b"evidence")


@pytest.fixture
def book(tmp_path):
    with Gradebook(tmp_path / "book.sqlite") as book:
        yield book


def test_a_verdict_comes_back_with_its_figures_and_evidence(book):
    book.record(GRADE, b"source", VERDICT)
    found = book.verdict("k1")
    assert (found.state, found.seed, found.frame, book.source("k1")) == ("failed", 7, b"evidence", b"source")
    assert found.checks[0].figures[0].value != found.checks[0].figures[0].value  # nan


def test_the_last_grade_counts_and_the_others_are_kept(book):
    for state in ("failed", "timeout", "passed"):
        book.record(replace(GRADE, state=state))
    book.record(replace(GRADE, lab="lab92"))
    assert [(g.lab, g.state) for g in book.grades()] == [("lab91", "passed"), ("lab92", "failed")]
    assert [g.state for g in book.history("ada", "lab91")] == ["failed", "timeout", "passed"]


def test_a_grade_and_its_verdict_are_written_together_or_not_at_all(book):
    with pytest.raises(sqlite3.Error):
        book.record(replace(GRADE, state=None), b"source", VERDICT)
    assert book.verdict("k1") is None
    book.record(GRADE, b"source", VERDICT)  # and the book is still usable
    assert book.verdict("k1").state == "failed"


def test_a_file_that_is_no_gradebook_is_left_alone(tmp_path):
    path = tmp_path / "book.sqlite"
    path.write_bytes(b"the only copy of somebody's thesis" * 100)
    with pytest.raises(BadGradebook):
        Gradebook(path)
    assert path.read_bytes().startswith(b"the only copy")


def test_another_versions_book_is_refused(tmp_path):
    path = tmp_path / "book.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(BadGradebook, match="another version"):
        Gradebook(path)


WRITER = """
import sys
from pathlib import Path
from breakfix.grading.gradebook import Grade, Gradebook
from breakfix.verdict import Verdict
with Gradebook(Path(sys.argv[1])) as book:
    first = sum(1 for _ in book.grades())
    for i in range(first, 100_000):
        verdict = Verdict("lab91", "passed", i, frame=bytes(1000))
        book.record(Grade(f"s{i:06}", "lab91", f"k{i}", "passed", 10, 10), b"source", verdict)
        print(i, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL on Windows")
def test_nothing_that_was_acknowledged_is_lost_and_nothing_doubled_by_a_kill_at_any_moment(tmp_path):
    path, acknowledged, draw = tmp_path / "book.sqlite", [], random.Random(5)
    for _ in range(100):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        writer.stdout.readline()  # it is at work
        time.sleep(draw.uniform(0, 0.02))
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged.append(writer.stdout.read())
        writer.wait()
    with Gradebook(path) as book:
        there = [g.student for g in book.grades()]
        assert len(there) == len(set(there))
        last = max(int(line) for text in acknowledged for line in text.split() if line.isdigit())
        assert there == [f"s{i:06}" for i in range(len(there))]
        assert len(there) >= last + 1
        assert all(book.verdict(g.key) for g in book.grades())
        assert all(len(book.history(g.student, "lab91")) == 1 for g in book.grades())
