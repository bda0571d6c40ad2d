"""What a learner reads: whole at any width, the same with and without colour, a sign or a word beside every colour."""

import io
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from breakfix.catalog import Catalog
from breakfix.predict import Scored
from breakfix.render import asking, listing, terminal
from breakfix.render.evidence import evidence_table
from breakfix.verdict import ERROR, FAILED, NOT_MEASURABLE, PASSED, TIMEOUT, CheckResult, Figure, Verdict

LAB = Catalog.read(Path(__file__).parents[1] / "fixtures" / "learner_root")["lab91"]

GOOD = Figure("updates", 2, "==", 2, holds=True)
BAD = Figure("error, long [of many]", 0.25, "<=", 1e-5, "EUR")
CHECKS = (
    CheckResult("test_passes", PASSED, 2, "It [does] this: " + "and " * 30 + "so on.\nMore.", "", (GOOD,)),
    CheckResult("test_fails", FAILED, 5, "It does that.", "error", (GOOD, BAD, replace(BAD, what="second"))),
    CheckResult("test_unclear", NOT_MEASURABLE, 3, "", "inside and outside disagree\nin two lines"),
)
VERDICT = Verdict("lab91", FAILED, 7, checks=CHECKS, outside={"cpu_seconds": 1.5, "maxrss_mib": 400.0, "x": 1.0})


@pytest.fixture(params=[80, 120])
def width(request, monkeypatch):
    monkeypatch.setattr(terminal.console, "_width", request.param)
    return request.param


def printed(what, width=80, **options) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, legacy_windows=False, **options)
    console.print(what)
    return console.file.getvalue()


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


# ------------------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0, "0"), (7, "7"), (-1234567, "-1 234 567"), (10**400, "1" + " 000" * 133 + " 0"),
        (2.0, "2"), (2000.0, "2 000"), (1234.56, "1 235"), (-98765.4, "-98 765"), (999.94, "999.9"),
        (0.000123456, "0.0001235"), (3.14159, "3.142"), (1e-9, "1e-09"), (1e22, "1e+22"),
        (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (-0.0, "0"),
        (True, "True"), ("float32", "float32"), (None, "None"),
    ],
)  # fmt: skip
def test_numbers_as_people_read_them(value, wanted):
    if value == 10**400:
        assert terminal.number(value).replace(" ", "") == str(value)
    else:
        assert terminal.number(value) == wanted


@given(st.one_of(st.floats(-1e300, 1e300), st.sampled_from([math.nan, math.inf, -math.inf]), st.integers()))
def test_every_number_can_be_shown_and_is_near(value):
    shown = float(terminal.number(value).replace(" ", ""))
    assert shown == pytest.approx(value, rel=1e-3, nan_ok=True)


def test_a_figure_out_of_bound_never_looks_like_its_bound():
    close = Figure("loss error", 1.00001e-5, "<=", 1e-5)
    assert terminal.figure(close) == "loss error: 1.00001e-05, at most 1e-05"
    assert terminal.figure(BAD) == "error, long [of many]: 0.25 EUR, at most 1e-05 EUR"
    assert terminal.figure(Figure("loss", math.nan, ">=", 0.95)) == "loss: nan, at least 0.95"


# ------------------------------------------------------------------------------------------------------------ verdicts


def test_a_verdict_says_everything_once(width):
    text = printed(terminal.verdict(VERDICT, LAB), width)
    assert "✗ failed  lab91  The total is off by one [of many] · 2 of 10 points" in text
    for what in ("✓ It [does] this:", "so on.", "2/2", "✗ It does that.", "0/5", "? test_unclear", "0/3"):
        assert text.count(what) == 1, what
    assert "error, long [of many]: 0.25 EUR, at most 1e-05 EUR" in text
    assert "updates: 2" not in text  # it holds
    assert "inside and outside disagree" in text
    assert "test_fails" in text
    assert "test_passes" not in text
    assert "seed 7 · cpu" in text
    assert "1.50 CPU s, 400 MiB" in text


def test_lines_fit_and_continue_under_their_beginning(width):
    lines = printed(terminal.verdict(VERDICT, LAB), width).splitlines()
    assert max(map(len, lines)) <= width
    long = [line for line in lines if "and and" in line]
    assert len(long) > 1
    assert all(line.startswith("    ") for line in long[1:])


def test_colour_is_never_the_only_sign(width):
    """Without escape codes the coloured text is the plain one, and every state has a sign and a word."""
    coloured = printed(terminal.verdict(VERDICT, LAB), width, force_terminal=True, color_system="truecolor")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == printed(terminal.verdict(VERDICT, LAB), width)
    heads = {state: printed(terminal.verdict(replace(VERDICT, state=state), LAB), width)[:20] for state in
             (PASSED, FAILED, NOT_MEASURABLE, ERROR, TIMEOUT)}  # fmt: skip
    assert len(set(heads.values())) == len(heads)
    assert all(head.startswith(("✓", "✗", "?", "!")) and state in head for state, head in heads.items())


@pytest.mark.parametrize(("environment", "codes"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_can_be_switched_off(environment, codes):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, _environ={"TERM": "xterm"} | environment)
    console.print(terminal.verdict(VERDICT, LAB))
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]", console.file.getvalue())) == codes


def test_what_it_printed_is_shown_where_it_did_not_pass(width):
    chatty = replace(VERDICT, log="\n".join(f"line {i}" for i in range(100)))
    text = printed(terminal.verdict(chatty, LAB), width)
    assert "It printed:" in text
    assert "line 99" in text
    assert "line 50" not in text
    assert "line 99" not in printed(terminal.verdict(replace(chatty, state=PASSED), LAB), width)


def test_carets_that_would_point_at_nothing_are_left_out(width):
    long = f"  File x, line 1\n    {'a' * 200}\n    {'^' * 200}\n    short\n    ^^^^^\nNameError: [nope]"
    text = printed(terminal.verdict(Verdict("lab91", ERROR, 1, detail=long), LAB), width)
    assert "^^^^^^" not in text
    assert "    ^^^^^" in text
    assert "NameError: [nope]" in text


def test_a_check_without_figures_shows_its_message_and_a_long_one_only_the_first_figures():
    many = tuple(replace(BAD, what=f"figure {i}") for i in range(50))
    text = printed(terminal.checks((CheckResult("test_many", FAILED, 1, "Many.", "", many),)))
    assert (text.count("figure"), "figure 0" in text) == (terminal.SHOWN_FIGURES, True)


# ------------------------------------------------------------------------------------------------------------ evidence


EVIDENCE = {
    "budget": 4.6,
    "float32.ragged.grad": np.array([[1.0, np.nan], [0.5, -np.inf]], dtype=np.float32),
    "empty": np.zeros(0),
    "all.nan": np.full(3, np.nan),
    "flags": np.array([True, False]),
    "zero.d": np.array(2.5),
    "held": {"optimizer state": 2.00509461426492, "parts": [1, 2.5]},
    "a.very.long.key.that.nobody.should.ever.need.but.somebody.will.write.some.day": "x" * 500,
    "markup": "[bold]not markup[/]",
    "none": None,
}


def test_evidence_shows_every_key_and_value(width):
    text = printed(evidence_table(EVIDENCE), width)
    for key in EVIDENCE:  # the long one goes over several lines, beside a value that is all x
        assert key in re.sub(r"[\sx]", "", text)
    for what in (
        "float32 [2, 2], 0.5 to 1, 2 not finite",
        "float64 [0]",
        "float64 [3], 3 not finite",
        "bool [2], False to True",
        "2.5",
        "optimizer state 2.005, parts [1, 2.5]",
        "[bold]not markup[/]",
        "None",
    ):
        assert what in flat(text), what
    assert "x" * 200 not in re.sub(r"\s", "", text)
    assert max(map(len, text.splitlines())) <= width


def test_tables_are_counted():
    """A long table says nothing in one line, unless something in it is not finite."""
    tables = {"scores": np.ones((2, 3)), "ranges": [[0, 1], [2, 3]], "bad": np.array([[1.0, np.inf]])}
    text = flat(printed(evidence_table(tables | {"one": 1.5, "told": ["", "x"]}), 100))
    assert "2 more, which --json shows" in text
    assert "scores" not in text
    assert "bad float64 [1, 2], 1 to 1, 1 not finite" in text
    assert "told [-, x]" in text


def test_keys_that_differ_in_their_first_part_are_rows_of_one_table():
    evidence = {f"{case}.{what}": i for i, case in enumerate("abc") for what in ("loss", "updates")}
    text = printed(evidence_table(evidence | {"d.loss": 7, "alone": 8}), 100)
    assert [line.split() for line in text.splitlines() if line.strip()] == [
        ["loss", "updates"], ["a", "0", "0"], ["b", "1", "1"], ["c", "2", "2"],
        ["what", "value"], ["d.loss", "7"], ["alone", "8"],
    ]  # fmt: skip


def test_a_family_too_wide_for_the_terminal_is_several_tables():
    evidence = {f"{case}.{'x' * 20}{i}": i for case in "abc" for i in range(9)}
    lines = printed(evidence_table(evidence), terminal.console.width).splitlines()
    cells = [line.split()[1:] for line in lines if line.startswith("b")]
    assert [cell for row in cells for cell in row] == [*"012345678"]
    assert len(cells) > 1


def test_of_names_that_come_again_and_again_the_number_is_shown():
    evidence = {f"case {i}.touched": ["weight", "bias", "x" * i] for i in range(9)}
    text = flat(printed(evidence_table(evidence), 100))
    assert (text.count("3 names"), "weight" in text) == (9, False)


def test_lines_that_differ_in_numbers_are_printed_once():
    warning = "[rank{}]:[W1130 08:33:{}.119] Warning: something that is said once by every rank, and is rather long"
    log = "\n".join([*(warning.format(rank, rank + 10) for rank in range(4)), "loss 1.5", "loss 2.5", "loss 2.5"])
    text = flat(printed(terminal.verdict(replace(VERDICT, log=log), LAB), 200))
    assert text.count("Warning") == 1
    assert "rather long (4 times)" in text
    assert "loss 1.5 loss 2.5 loss 2.5" in text


def test_evidence_for_json_holds_nothing_that_json_has_not():
    plain = terminal.plain(EVIDENCE | {"nested": {"deep": [math.nan, {"er": math.inf}]}})
    assert plain["float32.ragged.grad"] == [[1.0, "nan"], [0.5, "-inf"]]
    assert plain["nested"] == {"deep": ["nan", {"er": "inf"}]}
    assert plain["zero.d"] == 2.5


@given(st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=5,
))  # fmt: skip
def test_any_evidence_can_be_shown(value):
    assert len(terminal.brief(value)) <= max(160, len(terminal.number(value)) if isinstance(value, int) else 0)
    printed(evidence_table({"key": value}))


# ------------------------------------------------------------------------------------------------------------ compared


def test_broken_against_fixed_names_the_figure_that_failed(width):
    fixed = Verdict("lab91", PASSED, 7, checks=tuple(
        replace(c, state=PASSED, figures=(GOOD, replace(BAD, value=0.0, holds=True))) for c in CHECKS
    ))  # fmt: skip
    text = printed(terminal.compared(VERDICT, fixed), width)
    assert re.search(r"error, long \[of many\]\s+0.25\s+0\s+≤ 1e-05 EUR", text)
    assert len(text.splitlines()) == 2


def test_a_side_without_that_figure_has_a_dash():
    assert re.search(r"0.25\s+-\s+≤ 1e-05 EUR", printed(terminal.compared(VERDICT, Verdict("lab91", ERROR, 7))))


# ------------------------------------------------------------------------------------------------- list, doctor, asking


def row(**more):
    plain = {
        "lab": "lab91", "title": "The title [in brackets] " + "that is long " * 5, "track": "distributed",
        "level": 3, "minutes": 45, "lacking": None, "status": "not started", "hints": 0, "solution_seen": None,
    }  # fmt: skip
    return plain | more


def test_the_list_fits_and_says_how_far_one_is(width):
    rows = [
        row(),
        row(status="passed", hints=2, solution_seen="2026"),
        row(status="started", hints=1, lacking="needs cuda"),
    ]
    text = printed(listing.table(rows), width)
    assert max(map(len, text.splitlines())) <= width
    assert "[in" in text
    for words in ("not started", "passed, 2 hints, solution seen", "started, 1 hint; needs cuda"):
        assert all(word in flat(text) for word in words.split())
    assert (text.count("✓"), text.count("…")) == (1, 1)


def test_a_report_continues_under_its_values(width):
    text = printed(listing.report({"part": {"key": "value [x] " * 30, "other": 3}}), width)
    lines = text.splitlines()
    assert lines[0].strip() == "part"
    assert all(line.startswith(" " * 22) for line in lines[2:-1])
    assert max(map(len, lines)) <= width


def answers(monkeypatch, capsys, typed, *choices):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    asked = [{"question": "What [exactly]?", "choices": list(choices)}, {"question": "And now?", "choices": ["x", "y"]}]
    return asking.predictions(asked), capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("a\nb\n", ["40", "y"]),
        ("B\n\n", ["8", None]),
        ("\n\n", [None, None]),
        ("", [None, None]),
        ("a", ["40", None]),
        ("8\nx\n", ["8", "x"]),  # a choice itself does as well as its letter
        ("9\n0\nc\nno idea\nb\na\n", ["8", "x"]),  # what is neither is asked again
    ],
)
def test_a_prediction_is_a_letter_a_choice_or_nothing(monkeypatch, capsys, typed, wanted):
    found, out = answers(monkeypatch, capsys, typed, 40, 8)
    assert found == wanted
    assert "What [exactly]?" in out
    assert out.count("a letter from a to b") == (4 if "no idea" in typed else 0)


@pytest.mark.parametrize(
    ("typed", "wanted"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_only_a_yes_is_a_yes(monkeypatch, typed, wanted):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert asking.yes("Show [it]?") == wanted


def test_nobody_is_asked_without_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y"))
    assert not asking.can_ask()
    monkeypatch.setattr("sys.stdin", None)
    assert not asking.can_ask()


def test_a_scored_prediction_has_a_sign_and_both_answers():
    assert asking.scored(Scored("How many?", "8", "8")).plain == "✓ How many?\n  you said 8, measured 8"
    assert asking.scored(Scored("How many?", "40", "8")).plain == "≠ How many?\n  you said 40, measured 8"


def test_the_next_step_is_a_command():
    assert terminal.step("breakfix run lab91", "to [see] it").plain == "next: breakfix run lab91  to [see] it"
    assert terminal.step("breakfix start").plain == "next: breakfix start"
