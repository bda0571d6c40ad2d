"""Grades for other programs, each by its published rules; nothing that a student wrote means anything in them."""

import csv
import io
import json
from dataclasses import replace
from xml.etree import ElementTree as xml

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakfix.catalog import Catalog
from breakfix.grading import exports, feedback
from breakfix.grading.exports import BadCanvas, BadSum, Graded
from breakfix.grading.gradebook import Grade
from breakfix.verdict import CheckResult, Figure, Verdict

CHECKS = (
    CheckResult("test_a", "passed", 4, "It is so.", figures=(Figure("error", 1e-6, "<=", 1e-3, "", True),)),
    CheckResult("test_b", "failed", 6, "It must be so.", "too much", (Figure("peak", 5.0, "<=", 4.0, "MiB", False),)),
)
FAILED = Graded(Grade("ada", "lab08", "k", "failed", 8, 20), Verdict("lab08", "failed", 7, checks=CHECKS))
MISSING = Graded(Grade("bob", "lab08", None, "missing", 0, 20, trouble="nothing was handed in"))
ERROR = Graded(Grade("cy", "lab08", "e", "error", 0, 20), Verdict("lab08", "error", 7, detail="Traceback <b>&"))
ROWS = [FAILED, MISSING, ERROR]
CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,Week 3 (4711),Other (1)
    Points Possible,,,,,20,5
"Lovelace, Ada",1,u1,ada,A,,5
Bob,2,u2,bob,A,7,
Dora,3,u3,dora,A,3,4
"""


def test_csv_has_a_line_each_and_no_formulas():
    rows = [replace(FAILED, grade=replace(FAILED.grade, student="=cmd|' /C calc'!A0"))]
    [line] = csv.DictReader(io.StringIO(exports.plain_csv(rows)))
    assert line["student"].startswith("'=")
    assert line["points"] == "8"


def test_json_has_every_figure():
    told = json.loads(exports.plain_json(ROWS))
    assert told[0]["verdict"]["checks"][1]["figures"][0]["value"] == 5.0
    assert told[1]["verdict"] is None


def test_junit_counts_add_up():
    root = xml.fromstring(exports.junit(ROWS))
    suites = {suite.get("name"): suite for suite in root}
    assert [suites["ada lab08"].get(k) for k in ("tests", "failures", "errors")] == ["2", "1", "0"]
    assert suites["bob lab08"].find("testcase/error").text == "nothing was handed in"
    for suite in root:
        assert int(suite.get("tests")) == len(suite.findall("testcase"))
        assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))


@given(st.text())
def test_no_text_breaks_the_xml(text):
    row = replace(ERROR, verdict=replace(ERROR.verdict, detail=text))
    assert len(xml.fromstring(exports.junit([row]))) == 1


@pytest.mark.parametrize("row", ROWS)
def test_gradescope_follows_its_specification(row):
    told = json.loads(exports.gradescope([row]))
    assert told["score"] == row.grade.points
    assert sum(t["max_score"] for t in told["tests"]) == row.grade.most
    assert sum(t["score"] for t in told["tests"]) == row.grade.points
    for test in told["tests"]:
        assert set(test) == {"name", "score", "max_score", "status", "output"}
        assert test["status"] in ("passed", "failed")
        assert 0 <= test["score"] <= test["max_score"]


def test_gradescope_gets_what_the_late_policy_leaves():
    row = replace(FAILED, grade=replace(FAILED.grade, kept_percent=50))
    assert json.loads(exports.gradescope([row]))["score"] == 4


@pytest.mark.parametrize("row", ROWS)
def test_classroom50_has_whole_points(row):
    told = json.loads(exports.classroom50([row]))
    assert told["schema"] == "classroom50/result/v1"
    assert (told["score"], told["max-score"]) == (row.grade.points, row.grade.most)
    assert all(
        type(t["score"]) is int and set(t) == {"test-name", "passed", "score", "max-score"} for t in told["tests"]
    )


def test_canvas_gets_its_own_file_back_with_one_column_filled_in():
    before, after = (list(csv.reader(io.StringIO(t))) for t in (CANVAS, exports.canvas(CANVAS, ROWS, "Week 3")))
    assert [row[5] for row in after] == ["Week 3 (4711)", "20", "8", "0", "3"]
    assert [row[:5] + row[6:] for row in before] == [row[:5] + row[6:] for row in after]


@pytest.mark.parametrize(
    ("text", "column", "said"), [("a,b\n1,2\n", "x", "no gradebook export"), (CANVAS, "Week", "0 columns")]
)
def test_a_file_that_is_not_canvas_own_is_refused(text, column, said):
    with pytest.raises(BadCanvas, match=said):
        exports.canvas(text, ROWS, column)


@pytest.mark.parametrize("points", [-1, 21, 8.0, None])
@pytest.mark.parametrize("write", [exports.plain_csv, exports.plain_json, exports.junit, exports.gradescope])
def test_a_sum_that_cannot_be_is_never_written(points, write):
    with pytest.raises(BadSum, match="ada"):
        write([replace(FAILED, grade=replace(FAILED.grade, points=points))])


def test_feedback_shows_figure_bound_and_why_and_no_markup_of_a_students():
    row = replace(ERROR, grade=replace(ERROR.grade, student="<script>alert(1)</script>"))
    page = feedback.page([row], "Week | 3", Catalog.read())
    assert "<script>" not in page
    shown = feedback.page([FAILED], "Week 3", Catalog.read())
    assert "It must be so." in shown
    assert "| ✗ | peak | 5 MiB | ≤ 4 MiB |" in shown
