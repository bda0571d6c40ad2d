# starter: test_each_step_follows_the_gradient test_a_run_ends_where_it_should test_distances_and_their_gradients test_no_gradient_is_wrong_in_silence test_a_real_nan_stays_visible
"""Every step is the one that the gradient asks for, and a gradient that cannot be had is refused."""

import numpy as np
import pytest
import torch

from breakfix.checks import at_most, check, equal
from breakfix.probes.parity import relative_error

BOUNDS = {"cpu": 1e-4, "cuda": 1e-3}
DISTANCE = {"float32": 1e-4, "float64": 1e-4}  # an epsilon of 1e-12 under the root is fine, one of 1e-8 is not
NEAR = slice(8, 16)  # the rows that are 0.001 apart


@check(points=3)
def test_each_step_follows_the_gradient(evidence, inputs, lab, device):
    """Encoder and shelf each move by minus lr times their own gradient, both taken before the step."""
    for name in lab.measurement.STEPS:
        for part in ("encoder", "shelf"):
            error = lab.measurement.step_error(inputs, name, part, evidence[f"{name}.{part}"].copy())
            at_most(f"error of the step, {part}, {name}", error, BOUNDS[device.type])


@pytest.fixture(scope="module")
def reference(lab, inputs):
    """The run in float64: the state at its end, and its losses."""
    model, losses, _ = lab.measurement.reference(inputs, lab.measurement.with_rates(inputs.run, lab.measurement.RUN))
    return model.state_dict(), np.array(losses)


@check(points=1)
def test_a_run_ends_where_it_should(evidence, inputs, lab, reference, device):
    """After eight batches, some with a photo twice, every weight has gone where the reference's has."""
    state, losses = reference
    for part in ("encoder", "shelf"):
        start = lab.measurement.flat(inputs.state, part).numpy()
        wanted = lab.measurement.flat(state, part).numpy() - start
        at_most(
            f"error of the way gone, {part}",
            relative_error(evidence[f"run.{part}"] - start, wanted),
            BOUNDS[device.type],
        )
    at_most("error of the losses", relative_error(evidence["run.loss"], losses), BOUNDS[device.type])


def distances(inputs):
    """Values and gradients in float64 of the rows as float32 has them; zero where the rows are equal."""
    a, b, weights = inputs.a.double(), inputs.b.double(), inputs.weights.double().unsqueeze(1)
    length = torch.linalg.vector_norm(a - b, dim=1)
    direction = torch.where((length > 0).unsqueeze(1), (a - b) / length.unsqueeze(1), 0.0)
    return length.numpy(), torch.stack([weights * direction, -weights * direction]).numpy()


@check(points=2)
def test_distances_and_their_gradients(evidence, inputs):
    """A distance is exact to four digits when rows are 0.001 apart too; equal rows are at 0 and do not pull."""
    length, gradients = distances(inputs)
    same = length == 0
    for dtype, bound in DISTANCE.items():
        value, got = evidence[f"distance.{dtype}.value"], evidence[f"distance.{dtype}.gradients"]
        equal(f"dtype of the distance, {dtype}", value.dtype.name, dtype)
        at_most(f"distance of equal rows, {dtype}", float(np.abs(value[same]).max()), 1e-5)
        at_most(f"largest pull of equal rows, {dtype}", float(np.abs(got[:, same]).max()), 1e-6)
        for what, rows in (("all", ~same), ("those 0.001 apart", NEAR)):
            at_most(f"error of the distances, {dtype}, {what}", relative_error(value[rows], length[rows]), bound)
            error = relative_error(got[:, rows], gradients[:, rows])
            at_most(f"error of their gradients, {dtype}, {what}", error, bound)


@check(points=2)
def test_no_gradient_is_wrong_in_silence(evidence, lab):
    """A gradient that is taken after a step, of or through what the step has changed, is right, or autograd refuses."""
    for part in lab.measurement.HELD:
        at_most(f"error, 0 if refused, {part}", evidence[f"held.{part}.error"], 1e-4)


@check(points=1)
def test_the_memory_holds_the_newest(evidence, inputs, lab, device):
    """The memory holds the places of the newest photos as they were before the step, in any order."""
    regimes = lab.measurement.STEPS["ordinary"], *lab.measurement.STILL
    steps = lab.measurement.with_rates([inputs.batches["ordinary"], *inputs.still], list(regimes))
    for name, known in (("ordinary", steps[:1]), ("still", steps[1:])):
        wanted, got = lab.measurement.reference(inputs, known)[0].memory.numpy(), evidence[f"{name}.memory"]
        equal(f"shape of the memory, {name}", list(got.shape), list(wanted.shape))
        apart = np.linalg.norm(got[:, None] - wanted[None], axis=2)
        farthest = max(apart.min(axis=0).max(), apart.min(axis=1).max())
        at_most(f"farthest row from its like, {name}", float(farthest), BOUNDS[device.type])


@check(points=1)
def test_a_real_nan_stays_visible(evidence):
    """A photo or a place that really holds a nan shows in the loss or the distance: hiding it is not fixing it."""
    equal("loss is finite, a photo with a nan", bool(np.isfinite(evidence["nan.loss"])), False)
    equal("distance is finite, a place with a nan", bool(np.isfinite(evidence["nan.distance"])), False)
