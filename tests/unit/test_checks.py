"""What a check says: the figure is recorded whether it holds or not, and nothing but a figure that holds passes."""

import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from breakfix import checks
from breakfix.checks import at_least, at_most, equal


@pytest.fixture(autouse=True)
def looked():
    """The figures that the check which is running has looked at."""
    checks._looked.clear()
    yield checks._looked
    checks._looked.clear()


def test_at_most_and_at_least(looked):
    at_most("error", 0.5, 0.5)
    at_least("steps", 3, 3, "steps")
    assert [(f.what, f.value, f.relation, f.bound, f.unit, f.holds) for f in looked] == [
        ("error", 0.5, "<=", 0.5, "", True),
        ("steps", 3, ">=", 3, "steps", True),
    ]


@pytest.mark.parametrize("demand", [at_most, at_least])
@pytest.mark.parametrize(
    ("value", "bound"), [(math.nan, 1), (1, math.nan), (np.float32("nan"), 1), (np.array(np.nan), 1)]
)
def test_nan_holds_no_bound(looked, demand, value, bound):
    with pytest.raises(AssertionError, match="nan"):
        demand("error", value, bound)
    assert [f.holds for f in looked] == [False]


def test_the_message_names_figure_unit_and_bound():
    with pytest.raises(AssertionError, match=r"^peak of step 3: 7 MiB, at most 5$"):
        at_most("peak of step 3", 7, 5, "MiB")
    with pytest.raises(AssertionError, match=r"^steps: 1, at least 2$"):
        at_least("steps", 1, 2)
    with pytest.raises(AssertionError, match=r"^kind: gelu, wanted relu$"):
        equal("kind", "gelu", "relu")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (3, 3), (3, 3.0), (True, True), ("a", "a"), (None, None), ([1, 2], [1, 2]), ({"a": [1]}, {"a": [1]}),
        (np.int64(3), 3), (3.0, np.float32(3)), (np.bool_(True), True), (np.arange(3), np.arange(3)),
    ],
)  # fmt: skip
def test_equal(value, wanted):
    equal("value", value, wanted)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (3, 4), ("3", 3), (None, 0), (math.nan, math.nan), ([1, 2], (1, 2)), ("a", "b"),
        (np.arange(3), np.arange(3.0)), (np.zeros((1, 3)), np.zeros(3)), (np.zeros(3), np.full(3, np.nan)),
        (np.zeros(0), np.zeros((0, 2))), (3, np.array(3.0)),
    ],
)  # fmt: skip
def test_not_equal(value, wanted):
    """Neither in value, nor in dtype or shape, which are compared before any value is."""
    with pytest.raises(AssertionError):
        equal("value", value, wanted)


@pytest.mark.parametrize("value", ["x" * 5000, list(range(5000)), np.zeros(5000)])
def test_a_figure_is_short(looked, value):
    """A gradebook keeps every figure, so one is no place for a whole model."""
    equal("value", value, value)
    assert len(looked[0].value) <= 120


def test_python_without_assertions_passes_nothing(monkeypatch):
    """python -O leaves out `assert`: a check that rested on it would pass whatever it is given."""
    module = ModuleType("optimized")
    monkeypatch.setitem(sys.modules, "optimized", module)
    module.__file__ = checks.__file__
    exec(compile(Path(checks.__file__).read_text("utf-8"), checks.__file__, "exec", optimize=1), module.__dict__)
    with pytest.raises(AssertionError):
        module.at_most("error", 2, 1)
