# starter:
"""The loss falls."""

from breakfix.checks import at_most, check


@check(points=10)
def test_loss_falls(evidence):
    """The loss falls."""
    at_most("last loss against the first", evidence["loss"][-1] / evidence["loss"][0], 0.9)
