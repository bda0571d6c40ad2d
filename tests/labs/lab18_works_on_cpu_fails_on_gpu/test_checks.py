# starter: test_it_runs_on_the_card test_all_that_is_learned_is_known test_files_old_and_new test_nothing_but_the_batch_travels test_one_dtype
"""The model goes where it is sent, with all that belongs to it, once, and computes there what it computed on the CPU."""

import math

import pytest
import torch
from torch.nn import functional as F

from breakfix.checks import at_least, at_most, check, equal
from breakfix.probes.parity import relative_error

BOUNDS = {"cpu": 1e-4, "cuda": 1e-3}  # of float32 against float64
HALF = 0.15  # of bfloat16


def forecast(m, learned, statistics, readings):
    """What the model computes, in the dtype of `learned`, out of plain functions; `m` is measure.py."""
    like = learned["enter.weight"]
    mean, std = (torch.tensor(statistics[name], dtype=like.dtype) for name in ("mean", "std"))
    x = F.linear((readings.to(like.dtype) - mean) / std, learned["enter.weight"], learned["enter.bias"])
    for i in range(m.DEPTH):
        x = block(m, {name: learned[f"blocks.{i}.{name}"] for name in m.BLOCK}, x)
    return F.linear(x[:, -1], learned["leave.weight"], learned["leave.bias"])


def block(m, p, x):
    batch, steps, _ = x.shape
    normal = F.layer_norm(x, [m.WIDTH], p["norm.weight"], p["norm.bias"])
    q, k, v = F.linear(normal, p["attend.weight"], p["attend.bias"]).view(batch, steps, 3, m.HEADS, -1).unbind(2)
    ago = torch.arange(steps).unsqueeze(1) - torch.arange(steps)
    rates = 0.5 ** torch.arange(1, m.HEADS + 1, dtype=x.dtype).view(-1, 1, 1)
    bias = torch.where(ago < 0, -math.inf, -rates * ago)
    weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) / (m.WIDTH / m.HEADS) ** 0.5 + bias).softmax(-1)
    found = torch.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, steps, m.WIDTH)
    x = x + F.linear(found, p["mix.weight"], p["mix.bias"])
    hidden = F.layer_norm(x, [m.WIDTH], p["feed.0.weight"], p["feed.0.bias"])
    hidden = F.gelu(F.linear(hidden, p["feed.1.weight"], p["feed.1.bias"]))
    return x + F.linear(hidden, p["feed.3.weight"], p["feed.3.bias"])


def loss_of(forecast, truth):
    weights = torch.linspace(1.0, 0.5, truth.shape[1], dtype=torch.float64)
    return (weights * (forecast - truth.double()).square()).mean()


def step_of(m, learned, statistics, readings, truth):
    """Forecast, loss, and the gradients of `learned`, a dict of float64 tensors."""
    leaves = {name: value.detach().requires_grad_() for name, value in learned.items()}
    forecasts = forecast(m, leaves, statistics, readings)
    loss = loss_of(forecasts, truth)
    return forecasts.detach(), loss.item(), torch.autograd.grad(loss, list(leaves.values()))


@pytest.fixture(scope="module")
def reference(lab, inputs):
    """Forecast, loss and gradient of each batch in float64, and the forecast after the training."""
    m, found = lab.measurement, {}
    learned = {name: value.double() for name, value in inputs.learned.items()}
    for name, batch in inputs.batches.items():
        forecasts, loss, gradients = step_of(m, learned, inputs.statistics, *batch)
        found[name] = forecasts, loss, torch.cat([g.flatten() for g in gradients])
    batch = inputs.batches["two days"]
    for _ in range(m.UPDATES):
        gradients = step_of(m, learned, inputs.statistics, *batch)[2]
        learned = {name: w - m.RATE * g for (name, w), g in zip(learned.items(), gradients, strict=True)}
    return found | {"trained": step_of(m, learned, inputs.statistics, *batch)[0]}


def ran(evidence, names):
    """Those of the regimes that got to the end; what stopped the others is another check's matter, unless all did."""
    found = [name for name in names if not evidence[f"{name}.raised"]]
    at_least("regimes that got to the end", len(found), 1)
    return found


@check(points=3)
def test_it_runs_on_the_card(evidence, lab):
    """Forward, loss, backward and update run on a card, in float32 and bfloat16, and wherever the model is moved next."""
    for name in lab.measurement.REGIMES:
        equal(f"raised on the card, {name}", evidence[f"{name}.raised"], "")


@check(points=2)
def test_all_that_is_learned_is_known(evidence, reference, lab, device):
    """parameters() has every tensor that is learned, once, and nothing else; so an optimizer trains all of the model."""
    for name in lab.measurement.STEPS:
        equal(f"learned tensors that parameters() lacks, {name}", len(evidence[f"{name}.missing"]), 0)
        equal(f"numbers that are not to be learned, {name}", evidence[f"{name}.extra"], 0)
        error = relative_error(evidence[f"{name}.gradient"], reference[name][2])
        at_most(f"error of the gradients, {name}", error, BOUNDS[device.type])
    error = relative_error(evidence["trained.forecast"], reference["trained"])
    at_most("error of the forecast after some updates", error, BOUNDS[device.type])


@check(points=1)
def test_values_are_right(evidence, reference, lab, device):
    """With last month's file it forecasts what it forecast last month, for any number of readings, and scores it alike."""
    for name in lab.measurement.STEPS:
        forecasts, loss, _ = reference[name]
        error = relative_error(evidence[f"{name}.forecast"], forecasts)
        at_most(f"error of the forecast, {name}", error, BOUNDS[device.type])
        at_most(f"error of the loss, {name}", relative_error(evidence[f"{name}.loss"], loss), BOUNDS[device.type])


@check(points=2)
def test_files_old_and_new(evidence, lab):
    """Last month's file loads; today's state_dict is all that another model needs, and holds nothing that the code knows."""
    equal("raised by last month's file", evidence["file.raised"], "")
    equal("raised by load_state_dict", evidence["again.raised"], "")
    equal("another model forecasts the same, bit for bit", evidence["again.equal"], True)
    at_most("numbers in a state_dict", evidence["file.numbers"], lab.measurement.IN_A_FILE)


@check(points=1)
def test_nothing_but_the_batch_travels(evidence, lab):
    """Once the batch is on the card, a step copies nothing between devices and reads nothing: the host waits for both."""
    for name in ran(evidence, lab.measurement.REGIMES):
        at_most(f"bytes copied between devices in a step, {name}", evidence[f"{name}.copied"], 0)
        at_most(f"bytes read from the card in a step, {name}", evidence[f"{name}.read"], 0)


@check(points=1)
def test_one_dtype(evidence, lab):
    """A model computes in its own dtype: float64 is slow on most cards, and bfloat16 is what the night shift pays for."""
    for name in ran(evidence, lab.measurement.STEPS):
        at_most(f"float64 results in a step, {name}", evidence[f"{name}.float64"], 0)
    equal("dtype of a forecast in bfloat16", evidence["half.dtype"], "torch.bfloat16")
    error = relative_error(evidence["half.forecast"], evidence["two days.forecast"])
    at_most("distance of the forecast in bfloat16 from that in float32", error, HALF)
