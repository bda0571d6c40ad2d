# starter: test_a_resumed_run_is_the_same_run test_each_parcel_once_an_epoch test_the_rate_goes_on test_the_best_weights_stay_the_best test_a_kill_leaves_a_checkpoint test_a_checkpoint_is_data
"""A run that was stopped is the run that was not: the same to the last bit, from a file that is whole at any moment."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from breakfix.checks import at_least, at_most, check, equal
from breakfix.probes.parity import relative_error

SAME = {"cpu": 0.0, "cuda": 1e-5}  # of two runs of one seed, relative; not run on a GPU
NEAR = 1e-3  # of losses that one may have summed in another order, or in float16


@pytest.fixture(scope="module")
def stopped(lab, inputs):
    """The regimes in which a run was stopped."""
    return list(inputs.stops)


@check(points=3)
def test_a_resumed_run_is_the_same_run(evidence, stopped, device):
    """Each loss and each weight equals the uninterrupted run's, wherever it was stopped, and if it was only saved."""
    for name in ("saved on the way", *stopped):
        for what in ("losses", "weights"):
            error = relative_error(evidence[f"{name}.{what}"], evidence[f"uninterrupted.{what}"])
            at_most(f"difference of the {what}, {name}", error, SAME[device.type])
        equal(f"steps that resuming took, {name}", evidence[f"{name}.replayed"], 0)


@check(points=1)
def test_each_parcel_once_an_epoch(evidence, stopped, lab):
    """Stopped or not, an epoch has each parcel once, in an order of its own; none is seen twice, none is left out."""
    for name in ("uninterrupted", "saved on the way", *stopped):
        epochs = evidence[f"{name}.rows"].reshape(lab.measurement.EPOCHS, -1)
        seen = [epoch[epoch >= 0] for epoch in epochs]
        wanted = np.arange(lab.measurement.TRAINING)
        whole = sum(np.array_equal(np.sort(rows), wanted) for rows in seen)
        equal(f"epochs that have each parcel once, {name}", whole, len(seen))
        equal(f"different orders, {name}", len({rows.tobytes() for rows in seen}), len(seen))


@check(points=1)
def test_the_rate_goes_on(evidence, stopped, lab):
    """The learning rate goes through one schedule over all batches of the run: no jump, no step back, none left out."""
    wanted = np.array(lab.measurement.rates())
    for name in ("uninterrupted", "saved on the way", *stopped):
        off = np.abs(evidence[f"{name}.rates"] - wanted).max() / lab.measurement.RATE
        at_most(f"largest difference from the schedule, in shares of its top, {name}", float(off), 1e-6)


def losses_of_epochs(lab, inputs, ends):
    """What each epoch's weights lose on the validation parcels, in float64."""
    model = lab.measurement.reference().double()
    features, kinds = inputs.validation.tensors
    losses = []
    for weights in ends:
        torch.nn.utils.vector_to_parameters(torch.tensor(weights).double(), model.parameters())
        losses.append(F.cross_entropy(model(features.double()), kinds).item())
    return np.array(losses)


@check(points=1)
def test_the_best_weights_stay_the_best(evidence, inputs, stopped, lab):
    """`best` is a copy of the weights that lost least so far: it neither trains on nor is forgotten with its record."""
    for name in ("uninterrupted", "saved on the way", *stopped):
        ends = evidence[f"{name}.ends"]
        _is_best(f"in the end, {name}", evidence[f"{name}.best"], ends, losses_of_epochs(lab, inputs, ends))
    ends = evidence[f"{lab.measurement.HARDER}.ends"][: lab.measurement.EASY]  # none after these lost as little
    best = evidence[f"{lab.measurement.HARDER}.best"]
    _is_best(f"in the end, {lab.measurement.HARDER}", best, ends, losses_of_epochs(lab, inputs, ends))
    for name in stopped:
        ends = evidence[f"{name}.ends"][: inputs.stops[name][-1] // lab.measurement.PER_EPOCH]
        best = evidence[f"{name}.best_when_resumed"]
        _is_best(f"when resumed, {name}", best, ends, losses_of_epochs(lab, inputs, ends))


def _is_best(when, best, ends, losses):
    near = losses <= losses.min() + NEAR
    errors = [relative_error(best, weights) for weights, good in zip(ends, near, strict=True) if good]
    at_most(f"difference of the best weights from the best epoch's, {when}", min(errors), 0.0)


@check(points=2)
def test_a_kill_leaves_a_checkpoint(evidence):
    """In whatever state saving leaves the disk, the run of before or of now is there; also when the disk is full."""
    at_least("states of the disk while a run is saved", evidence["moments.count"], 1)
    equal("states without a checkpoint", evidence["moments.lost"], 0)
    equal("states without one, after a kill before", evidence["moments.again.lost"], 0)
    equal("the run of now is there afterwards", evidence["moments.last"], True)
    equal("the last run is there after a saving that failed", evidence["moments.full.kept"], True)


@check(points=1)
def test_a_checkpoint_is_data(evidence):
    """Resuming does nothing that is written in the file, and needs no card that the file was written from."""
    equal("an order in the file was carried out", evidence["file.order.carried_out"], False)
    equal("raised for a file from a card that is not here", evidence["file.card.raised"], "")
    equal("weights from that file are the run's", evidence["file.card.same"], True)


@check(points=1)
def test_nothing_else_broke(evidence, inputs, lab):
    """What cannot be saved or resumed raises; the run learns, with dropout and in float16 as before."""
    for what in ("torn", "empty", "missing"):
        equal(f"a {what} file raises", bool(evidence[f"file.{what}.raised"]), True)
    equal("saving on a full disk raises", bool(evidence["moments.full.raised"]), True)
    equal("what the model answers in training", evidence["uninterrupted.dtypes"], ["float16"])
    at_least("difference by dropout", evidence["uninterrupted.dropout"], 0.05)
    at_least(
        "batches whose step was skipped, as they overflowed",
        lab.measurement.TOTAL - evidence["uninterrupted.updates"],
        1,
    )
    losses = evidence["uninterrupted.losses"]
    at_most("last losses against the first", float(losses[-7:].mean() / losses[:7].mean()), 0.95)
