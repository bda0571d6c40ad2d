# starter: test_update_equals_the_whole_batch test_micro_batches_do_not_matter test_the_model_learns test_losses_are_the_batchs
"""Micro-batches are a matter of memory alone: the update is that of the whole batch, and so is the loss."""

import numpy as np
import pytest
import torch

from breakfix.checks import at_most, check, equal
from breakfix.probes.parity import relative_error

UPDATE = 1e-3  # float32 has 1e-5 at most, a wrong weight of a micro-batch 0.05 and more
OWN = 0.03  # in a model of one's own a rounding may flip a ReLU: 0.01 at most; BatchNorm has 0.7 and more
PEAK = 2.0  # of a plain accumulation's; one backward for all parts has 6 times that and more
LOSS = 1e-4
MISTAKES = 0.25  # share of a ward's samples: a model that has learned has 0.1 at most, one that has not 0.5 and more


@pytest.fixture(scope="module")
def judged(lab, inputs, evidence):
    """By regime, batch by batch: how far update and loss are from float64's, at the weights before that batch."""
    return {
        name: [_judge(lab.measurement, inputs, evidence, name, i) for i in range(r.batches)]
        for name, r in lab.measurement.REGIMES.items()
    }


def _judge(measurement, inputs, evidence, name, i):
    before, after = evidence[f"{name}.weights"][i : i + 2]
    loss, update = measurement.reference_update(torch.from_numpy(before.copy()), inputs["batches"][name][i])
    return relative_error(after.astype(float) - before, update), relative_error(evidence[f"{name}.losses"][i], loss)


@check(points=3)
def test_update_equals_the_whole_batch(judged):
    """The first update is that of the mean over the whole batch: even, ragged, unevenly labelled, with a gap."""
    for name in ("even", "ragged", "uneven", "gap"):
        at_most(f"error of the update, {name}", judged[name][0][0], UPDATE)


@check(points=1)
def test_every_update_stands_alone(judged, evidence):
    """Later batches get their own update, one each: nothing is left over from the batch before."""
    for name in ("even", "quarters"):
        for i in (1, 2):
            at_most(f"error of update {i + 1}, {name}", judged[name][i][0], UPDATE)
        equal(f"optimizer steps by batch, {name}", evidence[f"{name}.optimizer_steps"], [1, 1, 1])


@check(points=2)
def test_memory_is_that_of_one_micro_batch(lab, inputs, evidence, device):
    """The peak is that of one micro-batch, however large the batch: else there was no reason to cut it."""
    measurement = lab.measurement
    for name in measurement.PEAKS:
        plain = measurement.peak(measurement.plain_accumulation, inputs["peaks"][name], device)
        at_most(f"peak against a plain accumulation, {name} batch", evidence[f"peak.{name}"] / plain, PEAK)


@check(points=2)
def test_micro_batches_do_not_matter(lab, inputs, evidence):
    """Your own model gets the same update whether one recording goes in at a time, three, eight, or all of them."""
    for name, (recordings, _) in inputs["own"].items():
        whole = evidence[f"own.{name}.{len(recordings)}"]
        for micro in lab.measurement.OWN_MICROS:
            error = relative_error(evidence[f"own.{name}.{micro}"], whole)
            at_most(f"difference of the update, {micro} at a time, labels {name}", error, OWN)


@check(points=1)
def test_the_model_learns(lab, inputs, evidence):
    """After 120 updates your own model finds the classes in every ward, whatever the gain of its devices."""
    for i, (_, labels) in enumerate(inputs["held_out"]):
        found = evidence["lessons.logits"][i].argmax(axis=1)
        at_most(f"mistakes in ward {i + 1}", float(np.mean(found != labels.numpy())), MISTAKES)


@check(points=1)
def test_losses_are_the_batchs(judged):
    """The loss returned is the mean over everything labelled in the batch, also where a part of it has no label."""
    for name in ("even", "ragged", "uneven", "gap"):
        at_most(f"loss error, {name}, worst batch", max(_number(loss) for _, loss in judged[name]), LOSS)


def _number(error):
    """nan counts as infinite: max() would pass over it."""
    return np.inf if np.isnan(error) else error
