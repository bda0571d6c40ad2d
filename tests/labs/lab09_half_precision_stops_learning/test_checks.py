# starter: test_gradients_equal_float64 test_clipping_knows_the_true_norm test_weights_move_by_the_gradient
"""Half precision trains as float64 does: in a drought, in a flood, and after a batch of nonsense."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from breakfix.checks import at_least, at_most, check, equal
from breakfix.probes.parity import relative_error

# Of a layer's gradient or move, in one step. bfloat16 has 0.05 at worst, by its three digits; a wrong one 0.5 or more.
ERROR = 0.15
TRAINED = 4  # of the batches of a flood: a scale that halves from 65536 needs ten to fifteen to come down


@pytest.fixture(scope="module")
def judged(lab, inputs, evidence):
    """Every regime's batches, each as a Judged."""
    names = lab.measurement.REGIMES
    return {
        name: [_judge(lab.measurement, inputs, evidence, name, i) for i in _batches(inputs, name)] for name in names
    }


@dataclass(frozen=True)
class Judged:
    """One batch: errors of the loss, and of the gradient and the move in the layer where they are worst."""

    loss: float
    gradient: float
    move: float
    changed: int  # weights that are not bit for bit what they were


def _batches(inputs, name):
    return range(len(inputs[name]["batches"]))


def _judge(measurement, inputs, evidence, name, i):
    regime, batch = measurement.REGIMES[name], inputs[name]["batches"][i]
    before, after = evidence[f"{name}.weights"][i : i + 2]
    loss, gradient = _reference(measurement, before, batch, regime.max_norm)
    rates = {layer: regime.lr if layer == "leave" else regime.body_lr for layer in gradient}
    got, move = (measurement.by_layer(v) for v in (evidence[f"{name}.gradients"][i], after.astype(float) - before))
    return Judged(
        relative_error(evidence[f"{name}.losses"][i], loss),
        _worst(relative_error(got[layer], gradient[layer]) for layer in gradient),
        _worst(relative_error(move[layer], -rates[layer] * gradient[layer]) for layer in gradient),
        int((before.view(np.int32) != after.view(np.int32)).sum()),
    )


def _reference(measurement, weights, batch, max_norm):
    """float64's loss, and its clipped gradient by layer, at the weights that the subject had before this batch."""
    model = measurement.RunOff().double()
    measurement.load(model, torch.from_numpy(weights.copy()))
    gauges, readings, discharge = batch
    loss = F.mse_loss(model(gauges, readings.double()), discharge.double())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return loss.item(), measurement.by_layer(measurement.flat(p.grad for p in model.parameters()).numpy())


def _worst(errors):
    """The largest; nan counts as infinite."""
    return max(math.inf if math.isnan(error) else error for error in errors)


@check(points=3)
def test_gradients_equal_float64(judged):
    """What the optimizer gets is the true gradient, in every layer and on every batch: a loss that falls proves little."""
    for name in ("brook", "river"):
        at_most(f"gradient error, {name}, worst layer", _worst(batch.gradient for batch in judged[name]), ERROR)


@check(points=2)
def test_clipping_knows_the_true_norm(judged):
    """The gradient is clipped by its own norm: some batches are, others are not, and a fused optimizer is no excuse."""
    for name in ("fused", "clipped"):
        at_most(f"gradient error, {name}, worst layer", _worst(batch.gradient for batch in judged[name]), ERROR)


@check(points=2)
def test_weights_move_by_the_gradient(judged):
    """Each step moves the weights by the learning rate times the gradient: weights that stand still do not learn."""
    for name in ("brook", "river", "clipped", "fused"):
        at_most(f"error of the move, {name}, worst layer", _worst(batch.move for batch in judged[name]), ERROR)


@check(points=1)
def test_nonsense_changes_nothing(judged, evidence, lab):
    """A batch that gives no finite gradient changes no weight and is reported; the next one is trained on."""
    spoiled = lab.measurement.REGIMES["spoiled"].spoiled
    for i, batch in enumerate(judged["spoiled"]):
        if i in spoiled:
            at_most(f"weights changed by batch {i}, nonsense", batch.changed, 0)
            equal(f"loss is finite, batch {i}, nonsense", math.isfinite(evidence["spoiled.losses"][i]), False)
        else:
            at_most(f"gradient error, batch {i}, sound", batch.gradient, ERROR)


@check(points=1)
def test_a_flood_is_trained_on(judged):
    """A flood does not end training, and those of its batches that are trained on are trained on rightly."""
    used = [batch for batch in judged["flood"] if batch.changed]
    at_least("batches that changed the weights", len(used), TRAINED)
    at_most("gradient error, worst of them", _worst(batch.gradient for batch in used), ERROR)


@check(points=1)
def test_nothing_else_changes(judged, evidence):
    """Products stay in 16 bits, which is what saves memory, and parameters in 32; the loss returned is the batch's."""
    half = "torch.bfloat16" if evidence["products"] == "torch.bfloat16" else "torch.float16"
    equal("dtypes of the products", evidence["products"], half)
    equal("dtypes of the parameters", evidence["parameters"], "torch.float32")
    for name in ("brook", "river", "clipped", "fused"):
        at_most(f"loss error, {name}", _worst(batch.loss for batch in judged[name]), 0.03)
