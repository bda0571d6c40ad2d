"""The table of two verdicts: one line per check, the deciding figure, and a sign beside every number."""

from breakfix.render import tables
from breakfix.verdict import CheckResult, Figure, Verdict


def verdict(*checks):
    results = tuple(CheckResult(name, "passed", 1, figures=tuple(figures)) for name, figures in checks)
    return Verdict("lab99", "failed", seed=1, checks=results)


def at_most(what, value, bound):
    return Figure(what, value, "<=", bound, "B", value <= bound)


BROKEN = verdict(
    ("test_peak", [at_most("small", 1, 2), at_most("large", 9, 2)]),
    ("test_same", [Figure("a | b", True, "==", True, "", True)]),
)
FIXED = verdict(
    ("test_peak", [at_most("small", 1, 2), at_most("large", 2, 2), at_most("huge", 2, 2)]),
    ("test_same", [Figure("a | b", True, "==", True, "", True)]),
)


def test_every_figure_of_either_side_has_a_row():
    rows = tables.rows(BROKEN, FIXED)
    assert [row.what for row in rows] == ["small", "large", "huge", "a | b"]
    assert rows[2].broken is None
    assert rows[1].demand == "≤ 2 B"


def test_the_figure_that_failed_decides_else_the_first():
    assert [row.what for row in tables.deciding(tables.rows(BROKEN, FIXED))] == ["large", "a | b"]


def test_markdown_has_signs_and_escapes():
    lines = tables.markdown(tables.rows(BROKEN, FIXED)).splitlines()
    assert lines[3] == "| large | ✗ 9 | ✓ 2 | ≤ 2 B |"
    assert "| – |" in lines[4]
    assert "a \\| b" in lines[5]
    assert lines[5].startswith("| **same**: ")


def test_the_same_words_twice_in_a_check_stay_apart():
    twice = verdict(("test_x", [at_most("y", 1, 2), at_most("y", 3, 2)]))
    assert [row.broken.value for row in tables.rows(twice, twice)] == [1, 3]


def test_a_side_without_checks():
    rows = tables.rows(Verdict("lab99", "error", seed=1), FIXED)
    assert all(row.broken is None for row in rows)
    assert "| – | ✓ 1 |" in tables.markdown(rows)
