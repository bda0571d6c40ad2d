# starter: test_peak_is_at_most_half test_gradients_equal_those_without test_statistics_see_each_batch_once test_losses_and_predictions_stay
"""Half the bytes, one more forward pass, and the same model in the end: trained whole, and with adapters alone."""

import math

import pytest

from breakfix.checks import at_most, check, equal
from breakfix.probes.parity import relative_error

AGAIN = 1.25  # forward passes on top: one is computed again; a little more where unused gradients are computed too
BOUNDS = {
    "cpu": (1e-4, 1e-4),
    "cuda": (5e-3, 1e-3),
}  # one parameter's gradient; all else. A wrong fix has 5e-3 and more


@pytest.fixture(scope="module")
def plain(lab, inputs, device):
    """The same updates by the reference model, which keeps everything for backward."""
    measurement = lab.measurement
    return {
        name: measurement.train(
            measurement.reference(regime, inputs["seed"], device), measurement.reference_step, name, inputs, device
        )
        for name, regime in measurement.REGIMES.items()
    }


@check(points=3)
def test_peak_is_at_most_half(evidence, plain, lab):
    """A step needs at most half the bytes that it needs without, parameters and gradients included."""
    for name, wanted in plain.items():
        at_most(f"peak, {name}, share of plain", evidence[f"{name}.peak"] / wanted["peak"], lab.measurement.HALF)


@check(points=3)
def test_gradients_equal_those_without(evidence, plain, lab, device):
    """From one seed on, every trained parameter gets the gradient that it gets without, dropout included; no other one."""
    for name, wanted in plain.items():
        equal(f"parameters with a gradient, {name}", len(evidence[f"{name}.trained"]), len(wanted["trained"]))
        equal(f"they are those that are trained, {name}", evidence[f"{name}.trained"] == wanted["trained"], True)
        got, steps = evidence[f"{name}.gradients"], wanted["gradients"]
        equal(f"updates, {name}", got.shape, steps.shape)
        regime = lab.measurement.REGIMES[name]
        errors = [e for pair in zip(got, steps, strict=True) for e in _errors(lab.measurement, regime, *pair, wanted)]
        at_most(f"gradient error, {name}, worst parameter", _worst(errors), BOUNDS[device.type][0])


def _errors(measurement, regime, got, wanted, plain):
    """Relative errors of one step's gradients, parameter by parameter, of those that are trained."""
    got, wanted = (measurement.by_name(v, regime) for v in (got, wanted))
    return [relative_error(got[name], wanted[name]) for name in plain["trained"]]


def _worst(errors):
    """The largest; nan counts as infinite."""
    return max(math.inf if math.isnan(error) else error for error in errors)


@check(points=2)
def test_statistics_see_each_batch_once(evidence, plain, device):
    """After the first batch BatchNorm's running means and variances are what they are without."""
    for name, wanted in plain.items():
        got = evidence[f"{name}.statistics"][0]
        error = relative_error(got, wanted["statistics"][0].numpy())
        at_most(f"running statistics, error, {name}", error, BOUNDS[device.type][1])


@check(points=1)
def test_blocks_run_at_most_once_more(evidence, lab):
    """The price is one forward pass: what is multiplied on top is at most that and a quarter."""
    for name, regime in lab.measurement.REGIMES.items():
        forward, step = lab.measurement.plain_products(regime)
        at_most(f"computed again, {name}", (evidence[f"{name}.products"] - step) / forward, AGAIN, "forward passes")


@check(points=1)
def test_losses_and_predictions_stay(evidence, plain, device):
    """Losses, and what the trained model predicts in eval mode, are those without; it is left in training mode."""
    for name, wanted in plain.items():
        bound = BOUNDS[device.type][1]
        at_most(f"loss error, {name}", relative_error(evidence[f"{name}.losses"], wanted["losses"].numpy()), bound)
        error = relative_error(evidence[f"{name}.predicted"], wanted["predicted"].numpy())
        at_most(f"error of the predictions, {name}", error, 10 * bound)
        equal(f"left in training mode, {name}", evidence[f"{name}.left_training"], True)
