"""What lab98 demands, as an ordinary pytest that imports everything anew."""

import sys
from pathlib import Path

LAB = Path(__file__).parents[1] / "root" / "labs" / "lab98_fifty_steps"
sys.path.insert(0, str(LAB))


def test_loss_falls():
    import measure
    import train

    losses = measure.measure(train, 1, "cpu")["loss"]
    assert losses[-1] / losses[0] <= 0.9
