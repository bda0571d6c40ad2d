# starter:
"""Nothing is demanded."""

from breakfix.checks import at_most, check


@check(points=10)
def test_nothing(evidence):
    """Zero is zero."""
    at_most("loss", evidence["loss"], 0.0)
