# starter: test_a_payment_does_not_depend_on_its_batch test_what_is_not_finite_shows_and_stays_in_its_row
"""A payment's scores are its own: whatever is in its batch, and close to those of the float model."""

import numpy as np
import pytest
import torch

from breakfix.checks import at_least, at_most, check, equal
from breakfix.probes.parity import relative_error

CLOSE, AGREE, SMALL = 0.08, 0.95, 0.35  # relative error, share of equal decisions, bytes against float32
CORNER = 0.15  # largest error for a row that is hardly there, against the size of ordinary scores


@pytest.fixture(scope="module")
def reference(lab, inputs):
    """The float model's scores of any rows, in float64."""
    model = lab.measurement.reference()
    model.load_state_dict(inputs.weights)
    model.double().eval()

    def scores(rows):
        with torch.no_grad():
            return model(rows.double()).numpy()

    return scores


def others(count, place):
    return np.delete(np.arange(count), place)


@check(points=3)
def test_a_payment_does_not_depend_on_its_batch(evidence, inputs, lab, device):
    """A payment is scored as if it were alone: among ordinary ones, in any order, and beside an outlier of any size."""
    bound, alone = lab.measurement.TOLERANCE[device.type], evidence["alone"]
    for name in ("together", "reversed", "halves"):
        at_most(f"change of the scores, {name} against alone", relative_error(evidence[name], alone), bound)
    for factor in lab.measurement.FACTORS:
        rows = [(evidence[f"beside {factor:g} at {p}"], others(len(alone), p)) for p in inputs.places]
        moved = np.max([relative_error(scores[rest], alone[rest]) for scores, rest in rows])
        at_most(f"change of the scores, beside one {factor:g} times as large", float(moved), bound)


@check(points=2)
def test_scores_stay_close_to_the_float_model(evidence, inputs, reference, lab):
    """Scores and decisions are the float model's, whether or not the sample of production had faulty payments in it."""
    wanted, corners = reference(inputs.held_out), reference(inputs.corners)
    for name in lab.measurement.SAMPLES:
        scores = evidence[f"{name}.held_out"]
        at_most(f"error of the scores, {name}", relative_error(scores, wanted), CLOSE)
        agreement = float((scores.argmax(axis=1) == wanted.argmax(axis=1)).mean())
        at_least(f"decisions that are the float model's, {name}", agreement, AGREE)
        error = np.abs(evidence[f"{name}.corners"] - corners).max() / np.sqrt(np.mean(wanted**2))
        at_most(f"error for zeros, small numbers and a single one, {name}", float(error), CORNER)


@check(points=2)
def test_what_is_not_finite_shows_and_stays_in_its_row(evidence, inputs, lab, device):
    """A payment with a nan or inf has no finite score, as in the float model, and no other payment notices."""
    alone, place = evidence["alone"], inputs.places[1]
    rest = others(len(alone), place)
    for number in lab.measurement.NOT_FINITE:
        scores = evidence[f"beside {number}"]
        at_most(f"finite scores of a payment with {number}", int(np.isfinite(scores[place]).sum()), 0)
        moved = relative_error(scores[rest], alone[rest])
        at_most(f"change of the others' scores, {number}", moved, lab.measurement.TOLERANCE[device.type])


@check(points=1)
def test_the_file_is_small(evidence, lab):
    """What load needs takes at most 0.35 of the float model's bytes: that is why the model is quantized at all."""
    for name in lab.measurement.SAMPLES:
        at_most(f"bytes against float32, {name}", evidence[f"{name}.bytes"] / evidence["bytes.float"], SMALL)


@check(points=1)
def test_no_sample_is_not_passed_over(evidence, inputs, reference):
    """Without a single payment to calibrate on, quantize refuses, or does not need any."""
    if not evidence["empty.raised"]:
        error = relative_error(evidence["empty.held_out"], reference(inputs.held_out))
        at_most("error of the scores without a sample", error, CLOSE)
    equal("refused, or scored", bool(evidence["empty.raised"]) or len(evidence["empty.held_out"]) > 0, True)


@check(points=1)
def test_the_float_model_is_left_alone(evidence, lab):
    """quantize makes a copy: the float model is trained on and compared with."""
    for name in lab.measurement.SAMPLES:
        equal(f"weights of the float model are as before, {name}", evidence[f"{name}.untouched"], True)
