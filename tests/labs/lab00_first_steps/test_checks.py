# starter: test_two_batches test_eighty_batches test_losses
"""Each step uses the gradient of its own batch, and of nothing else."""

import numpy as np

from breakfix.checks import at_most, check
from breakfix.probes.parity import relative_error


def reference(inputs, count, lr):
    """(weight [1, 8], bias [1], losses [count]) of plain gradient descent in float64, its gradient written out."""
    weight, bias = inputs.weight.double().numpy(), inputs.bias.double().numpy()
    losses = []
    for readings, load in inputs.batches[:count]:
        x, y = readings.double().numpy(), load.double().numpy()
        error = x @ weight.T + bias - y
        losses.append(float((error**2).mean()))
        weight, bias = weight - lr * 2 * (error.T @ x) / len(x), bias - lr * 2 * error.mean(0)
    return weight, bias, np.array(losses)


def compare(name, evidence, inputs, lab):
    """Demand that weight and bias after the run equal the reference."""
    weight, bias, _ = reference(inputs, lab.measurement.RUNS[name], lab.measurement.LR)
    got = np.append(evidence[f"{name}.weight"].ravel(), evidence[f"{name}.bias"])
    at_most(f"error of weight and bias after {name}", relative_error(got, np.append(weight.ravel(), bias)), 1e-5)


@check(points=2)
def test_one_batch(evidence, inputs, lab):
    """The first step is one step of gradient descent: whatever was right must stay right."""
    compare("one", evidence, inputs, lab)


@check(points=4)
def test_two_batches(evidence, inputs, lab):
    """The second step uses the second batch's gradient alone: this is where it goes wrong."""
    compare("two", evidence, inputs, lab)


@check(points=3)
def test_eighty_batches(evidence, inputs, lab):
    """After eighty batches the loss has stayed down, and the weights are those of gradient descent."""
    loss = evidence["eighty.loss"]
    at_most("largest of the last ten losses against the first", float(loss[-10:].max() / loss[0]), 0.2)
    compare("eighty", evidence, inputs, lab)


@check(points=1)
def test_losses(evidence, inputs, lab):
    """The losses returned are those of each batch before its step, in every run."""
    for name, count in lab.measurement.RUNS.items():
        wanted = reference(inputs, count, lab.measurement.LR)[2]
        at_most(f"error of the losses, {name}", relative_error(evidence[f"{name}.loss"], wanted), 1e-3)
