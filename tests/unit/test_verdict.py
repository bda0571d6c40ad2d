"""The verdict: its points, its exit code, and its way through JSON."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakfix.verdict import (
    ERROR,
    EXIT_CODES,
    FAILED,
    NOT_MEASURABLE,
    PASSED,
    STATES,
    TIMEOUT,
    CheckResult,
    Figure,
    Verdict,
)

numbers = st.none() | st.booleans() | st.integers() | st.floats()
texts = st.text().filter(lambda text: text not in ("nan", "inf", "-inf"))  # which come back as numbers
figures = st.builds(
    Figure, texts, numbers | texts, st.sampled_from(["<=", ">=", "=="]), numbers | texts, texts, st.booleans()
)
checks = st.builds(
    CheckResult, texts, st.sampled_from([PASSED, FAILED, NOT_MEASURABLE]), st.integers(0, 10), texts, texts,
    st.lists(figures, max_size=3).map(tuple),
)  # fmt: skip
verdicts = st.builds(
    Verdict,
    lab=texts,
    state=st.sampled_from(STATES),
    seed=st.integers(0, 2**31),
    device=st.sampled_from(["cpu", "cuda:0"]),
    checks=st.lists(checks, max_size=3).map(tuple),
    detail=st.text(),
    log=st.text(),
    outside=st.dictionaries(st.text(), st.floats(0, 1e9)),
    versions=st.dictionaries(st.text(), st.text()),
    frame=st.binary(),
)


def verdict(state: str, *results: CheckResult) -> Verdict:
    return Verdict("lab90", state, seed=1, checks=results)


@given(verdicts)
def test_json_and_back(some):
    """Strict JSON, so that any reader takes it; the same verdict comes back, nan and inf too."""
    text = json.dumps(some.to_json(), allow_nan=False)
    assert repr(Verdict.from_json(json.loads(text), some.frame)) == repr(some)
    assert Verdict.from_json(json.loads(text), some.frame).frame == some.frame


def test_figures_that_are_not_finite():
    figure = Figure("loss", math.nan, "<=", math.inf)
    data = verdict(FAILED, CheckResult("test_a", FAILED, 1, figures=(figure,))).to_json()
    assert data["checks"][0]["figures"][0] | {"value": "nan", "bound": "inf"} == data["checks"][0]["figures"][0]
    (back,) = Verdict.from_json(data).checks[0].figures
    assert math.isnan(back.value)
    assert back.bound == math.inf


def test_the_frame_is_not_in_the_json():
    assert "frame" not in Verdict("lab90", PASSED, 1, frame=b"\xff").to_json()


def test_points():
    some = (
        CheckResult("test_a", PASSED, 3),
        CheckResult("test_b", FAILED, 5),
        CheckResult("test_c", NOT_MEASURABLE, 2),
    )
    assert verdict(FAILED, *some).points == (3, 10)
    assert verdict(FAILED, *some).failed_checks == {"test_b", "test_c"}


@pytest.mark.parametrize("state", [s for s in STATES if s not in (PASSED, FAILED)])
def test_no_points_without_a_judged_state(state):
    """Checks that passed beside something that could not be measured are worth nothing yet."""
    assert verdict(state, CheckResult("test_a", PASSED, 3)).points == (0, 3)


def test_only_passed_is_passed():
    assert [state for state in STATES if verdict(state).passed] == [PASSED]


def test_exit_codes():
    """0 passed, 1 not yet, 3 environment, 4 limit, 5 not measurable: people's scripts rely on them."""
    codes = {state: verdict(state).exit_code for state in STATES}
    assert codes == {
        "passed": 0, "failed": 1, "error": 1, "timeout": 4, "out of memory": 4, "too much data": 4, "not measurable": 5,
        "needs cuda": 3, "needs ranks": 3, "needs package": 3,
    }  # fmt: skip
    assert set(EXIT_CODES) <= set(STATES)


def test_nobody_can_change_a_verdict():
    with pytest.raises(AttributeError):
        verdict(TIMEOUT).state = PASSED
    with pytest.raises(AttributeError):
        CheckResult("test_a", ERROR, 1).state = PASSED
