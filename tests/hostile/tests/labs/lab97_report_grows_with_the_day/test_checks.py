# starter: test_totals test_memory
"""The checks of lab97."""

import numpy as np
import torch

from breakfix.checks import at_most, check, equal, not_measurable

HELD, GROWN_MIB = 3, 16.0


@check(points=6)
def test_totals(evidence, inputs):
    """The totals equal the reference, for whole batches and for a short last one."""
    for name, batches in inputs.items():
        found, wanted = evidence[f"{name}.totals"], reference(batches())
        equal(f"shape, {name}", list(np.shape(found)), list(wanted.shape))
        equal(f"dtype, {name}", str(getattr(found, "dtype", None)), "float64")
        at_most(f"error, {name}", float(np.abs(found - wanted).max()), 1e-6)


def reference(batches):
    return torch.stack([batch.double().sum(0) for batch in batches]).sum(0).numpy()


@check(points=4)
def test_memory(evidence, inputs, outside):
    """Few batches are alive at a time, and the process is as small as one that keeps none."""
    grown = outside["maxrss_mib"] - outside["idle_maxrss_mib"]
    held = max(int(evidence[f"{name}.held"]) for name in inputs)
    if held <= HELD and grown > GROWN_MIB:
        not_measurable(f"{held} batches were alive at a time, but the process grew by {grown:.0f} MiB")
    at_most("batches alive", held, HELD)
    at_most("resident memory over an idle run", grown, GROWN_MIB, "MiB")
