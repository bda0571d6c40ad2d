# starter: test_the_symptom_is_gone test_the_cause_is_gone test_nothing_else_broke
"""TODO: what the lab demands, in a sentence."""

from breakfix.checks import at_most, check

# TODO: name the checks after what they demand; each in two regimes at least, 10 points in all.


@check(points=3)
def test_the_symptom_is_gone(evidence):
    """TODO: what a person saw is gone."""
    at_most("symptom", evidence["symptom"], 0)


@check(points=4)
def test_the_cause_is_gone(evidence):
    """TODO: the mechanism is gone, also where it does not show."""
    at_most("cause", evidence["cause"], 0)


@check(points=3)
def test_nothing_else_broke(evidence):
    """TODO: outputs or gradients equal a reference that the checks compute themselves from `inputs`."""
    at_most("difference from the reference", evidence["difference"], 1e-5)
