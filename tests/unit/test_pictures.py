"""Small pictures: peaks and faults show, broken and fixed share one scale, and no evidence breaks them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from breakfix.catalog import Catalog
from breakfix.render.pictures import BLOCKS, WIDTH, blocks, picture

LAB = Catalog.read(Path(__file__).parents[1] / "fixtures" / "learner_root")["lab91"]


def lab(kind, series=("y",), **more):
    """A lab with this figure."""
    return replace(LAB, spec=LAB.spec | {"figure": {"kind": kind, "series": list(series), **more}})


def lines(figure, broken, fixed):
    text = picture(figure, {"y": broken}, {"y": fixed}).plain
    return [line.rstrip() for line in text.splitlines()]


def test_a_curve_is_one_line_of_blocks_per_side_under_its_title():
    figure = lab("curve", title="Loss over steps", labels=["loss"])
    assert lines(figure, np.arange(8.0).repeat(6), np.zeros(48)) == [
        "Loss over steps; loss 0 to 7",
        "broken  " + "".join(b * 6 for b in BLOCKS),
        "fixed   " + BLOCKS[0] * 48,
    ]


def test_both_sides_share_one_scale():
    _, broken, fixed = lines(lab("curve"), np.linspace(0, 100, 48), np.linspace(0, 10, 48))
    assert broken.endswith("█")
    assert set(fixed.split()[1]) <= {"▁", "▂"}


def test_few_values_are_drawn_wide_enough_to_be_seen():
    _, broken, _ = lines(lab("curve"), np.array([0.0, 1.0]), np.array([0.0, 0.0]))
    assert broken == "broken  ▁▁▁▁████"


def test_a_peak_between_two_columns_is_not_lost():
    values = np.zeros(10_000)
    values[4321] = 1.0
    row = lines(lab("curve"), values, np.zeros(10_000))[1].split()[1]
    assert len(row) == WIDTH
    assert row.count("█") == 1


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [10, 10_000])
def test_what_is_not_finite_shows_as_a_cross(fault, size):
    values = np.ones(size)
    values[size // 2] = fault
    title, broken, fixed = lines(lab("curve"), values, np.ones(size))
    assert "×" in broken
    assert "×" not in fixed
    assert title.endswith("× is not finite")


def test_nothing_but_nan_is_a_row_of_crosses():
    assert lines(lab("curve"), np.full(48, np.nan), np.full(48, np.nan))[1] == "broken  " + "×" * 48


@pytest.mark.parametrize(("value", "block"), [(0.0, "▁"), (5.0, "█"), (-5.0, "▁")])
def test_a_constant_is_flat(value, block):
    assert set(lines(lab("curve"), np.full(9, value), np.full(9, value))[1].split()[1]) == {block}


def test_a_scale_begins_at_zero_only_where_zero_is_near():
    assert "1 to 10" not in lines(lab("curve"), np.array([1.0, 10.0]), np.array([1.0, 1.0]))[0]
    assert "90 to 100" in lines(lab("curve"), np.array([90.0, 100.0]), np.array([90.0, 90.0]))[0]


def test_a_logarithmic_scale_spreads_decades_and_bears_zero():
    figure = lab("curve", log=True, labels=["error"])
    title, broken, _ = lines(figure, 10.0 ** np.arange(-7, 1).repeat(6), np.zeros(48))
    assert "(log)" in title
    assert broken == "broken  " + "".join(b * 6 for b in BLOCKS)


def test_a_timeline_shows_its_values_and_not_its_times():
    points = np.stack([np.arange(48) * 1e9, np.arange(48)], axis=1)
    assert lines(lab("timeline"), points, points)[0] == "0 to 47"


@pytest.mark.parametrize("together", [True, False])
def test_bars_have_names_and_numbers(together):
    broken, fixed = [17.5, 4.0], [4.0, 4.0]
    keys = ["y"] if together else ["a", "b"]
    figure = lab("bars", keys, title="Sent per step", y="MB", labels=["4 batches", "1 batch"])
    sides = [{"y": np.array(v)} if together else dict(zip(keys, v, strict=True)) for v in (broken, fixed)]
    assert picture(figure, *sides).plain.splitlines() == [
        "Sent per step; MB",
        "4 batches  broken  " + "█" * 30 + " 17.5",
        "           fixed   " + "█" * 7 + " 4",
        "1 batch    broken  " + "█" * 7 + " 4",
        "           fixed   " + "█" * 7 + " 4",
    ]


def test_a_bar_that_is_not_finite_is_a_cross_and_a_negative_one_is_none():
    figure = lab("bars", ["a", "b"], labels=["x", "y"])
    text = picture(figure, {"a": np.nan, "b": -3.0}, {"a": 1.0, "b": 1.0}).plain
    assert "× nan" in text
    assert " -3" in text


def test_many_bars_become_one_line():
    assert len(lines(lab("bars"), np.arange(30.0), np.arange(30.0))) == 3


def test_a_small_matrix_keeps_its_rows():
    broken, fixed = np.eye(3), np.ones((3, 3))
    assert lines(lab("matrix"), broken, fixed)[1:] == [
        "broken   fixed",
        "██▁▁▁▁   ██████",
        "▁▁██▁▁   ██████",
        "▁▁▁▁██   ██████",
    ]


def test_matrices_of_different_and_of_large_shapes_are_drawn_too():
    assert len(lines(lab("matrix"), np.eye(2), np.ones((4, 1)))) == 6
    assert len(lines(lab("matrix"), np.ones((50, 50)), np.eye(3))) == 3


@pytest.mark.parametrize("kind", ["curve", "timeline", "bars", "matrix"])
@pytest.mark.parametrize("broken", [None, "text", [], ["a", "b"], {"k": 1}, np.zeros(0), np.zeros((0, 2))])
def test_what_is_missing_or_no_number_is_said_to_be_missing(kind, broken):
    rows = lines(lab(kind), broken, np.arange(6.0).reshape(3, 2))
    assert any(row.startswith("broken") and "not measured" in row for row in rows)
    assert "not measured" in picture(lab(kind), {}, {}).plain


def test_blocks_of_the_whole_range_of_floats():
    largest = float(np.finfo(np.float64).max)
    assert blocks(np.array([-largest, 0.0, largest]), -largest, largest) in ("▁▄█", "▁▅█")


shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=60)
anything = st.one_of(
    arrays.arrays(st.sampled_from([np.float64, np.float16, np.int64, np.bool_]), shapes),
    st.floats(),
    st.integers(),
    st.text(max_size=3),
    st.none(),
)


@given(st.sampled_from(["curve", "timeline", "bars", "matrix"]), st.booleans(), anything, anything)
def test_no_evidence_raises(kind, log, broken, fixed):
    text = picture(lab(kind, log=log, title="t", labels=["a"]), {"y": broken}, {"y": fixed}).plain
    assert "broken" in text
    assert all(len(line) <= 100 for line in text.splitlines())
