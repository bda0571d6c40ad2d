"""Predictions: the evidence of the starter decides which choice was right, and nothing it says can break that."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakfix.catalog import Catalog
from breakfix.predict import Scored, number_in, right_choice, score

LAB = Catalog.read(Path(__file__).parents[1] / "fixtures" / "learner_root")["lab91"]


def right(value, *choices):
    return right_choice({"question": "?", "choices": list(choices), "evidence": "key"}, {"key": value})


@pytest.mark.parametrize(
    ("value", "choices", "wanted"),
    [
        (8, ["0", "about 8", "about 20", "40"], "about 8"),
        (8.4, ["0", "about 8", "about 20", "40"], "about 8"),
        (2000.0, ["nan", "inf", "2000", "1000"], "2000"),
        (2000.0, ["nan", "inf", "2 000 per step", "1 000 per step"], "2 000 per step"),
        (2000.0, ["2,000", "1,000"], "2,000"),
        (math.nan, ["nan", "inf", "2000"], "nan"),
        (math.inf, ["nan", "inf", "2000"], "inf"),
        (-math.inf, ["inf", "-inf", "2000"], "-inf"),
        (math.inf, ["infinite", "finite"], "infinite"),
        (1e-5, ["1e-5", "1e-3", "1"], "1e-5"),
        (0.26, ["0.5", ".25", "0"], ".25"),
        (-3, ["3", "-3"], "-3"),
        (-3, ["3", "−3"], "−3"),
        (3, ["float32: 16", "bfloat16: 3"], "bfloat16: 3"),
        (1.4, ["1 time as far", "1.5 times as far", "3 times as far"], "1.5 times as far"),
        (10**400, ["1", "inf"], "inf"),
        ("backward", ["forward", "backward", "optimizer"], "backward"),
        ("Backward ", ["forward", "backward"], "backward"),
        (True, ["yes", "no"], "yes"),
        (False, ["yes", "no"], "no"),
        (True, ["False", "True"], "True"),
        (np.float32(2.1), ["1", "2"], None),  # frames hold plain numbers and arrays, never NumPy's scalars
        (np.array(2.1), ["1", "2"], "2"),
    ],
)
def test_the_evidence_bears_out_one_choice(value, choices, wanted):
    assert right(value, *choices) == wanted


@pytest.mark.parametrize(
    ("value", "choices"),
    [
        (math.nan, ["0", "1"]),  # no choice says nan: none is right, not the first
        (math.inf, ["0", "1"]),
        (math.nan, ["forward", "backward"]),  # a word is not a number, and so not nan either
        (3, ["forward", "backward"]),
        (3, ["nan", "inf"]),
        ("elsewhere", ["forward", "backward"]),
        (True, ["1", "0"]),
        (None, ["none", "1"]),
        ([1, 2], ["1", "2"]),
        (np.array([1.0, 2.0]), ["1", "2"]),
    ],
)
def test_where_no_choice_fits_none_is_right(value, choices):
    assert right(value, *choices) is None


def test_a_prediction_without_a_key_or_without_its_evidence_is_not_scored():
    assert right_choice({"question": "?", "choices": ["1", "2"]}, {"key": 1}) is None
    assert right_choice({"question": "?", "choices": ["1", "2"], "evidence": "key"}, {}) is None


def test_only_what_was_answered_and_is_decided_is_scored():
    evidence = {"known.total": 5.0, "known.nothing": "something else"}
    first = LAB.predictions[0]["question"]
    assert score(LAB, ["6", "zero"], evidence) == [Scored(first, "6", "5")]
    assert score(LAB, [None, "zero"], evidence) == []
    assert score(LAB, [], evidence) == []
    assert score(LAB, ["5", None, "an answer to a question that is no more"], evidence) == [Scored(first, "5", "5")]


@given(st.floats(allow_nan=False, width=32), st.text(max_size=5))
def test_the_number_in_a_choice_is_found_among_words(value, words):
    text = f"about {value!r} {''.join(c for c in words if c.isalpha())}"
    assert number_in(text) == value


@given(
    st.one_of(st.floats(), st.integers(), st.text(), st.booleans(), st.none(), st.lists(st.integers())),
    st.lists(st.text(), min_size=1, max_size=4),
)
def test_no_value_and_no_choice_raises(value, choices):
    assert right(value, *choices) in (None, *choices)
