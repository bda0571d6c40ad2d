# starter: test_all_ranks_call_the_same test_each_recording_once_an_epoch test_each_epoch_has_an_order_of_its_own test_trains_like_one_process test_statistics_are_of_all_ranks test_one_rank_writes test_all_ranks_report_the_same
"""The ranks call the same collectives, share the recordings, and end with the model that one process would have trained."""

import math
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from breakfix.checks import at_most, check, equal, not_measurable
from breakfix.probes.parity import relative_error

LABELS = {
    "one": "1 rank",
    "even": "2 ranks, even",
    "two": "2 ranks, uneven",
    "short": "2 ranks, one short",
    "three": "3 ranks, uneven",
}
TOGETHER = ("even", "two", "short", "three")
# relative; a right file has 2e-6 at worst, in float32; the mean of unequal ranks' means has 1e-3 and more
BOUND = 1e-4


def demand_the_end(evidence, name):
    """All ranks came to the end of training; else there is nothing to judge."""
    equal(f"all ranks came to the end, {LABELS[name]}", not evidence[f"{name}.parted"][0], True)


def epochs_of(evidence, name, epochs):
    """[rank][epoch] -> the batches that it trained on."""
    demand_the_end(evidence, name)
    steps = [len(batches) for batches in evidence[f"{name}.trained"]]
    equal(f"steps beyond whole epochs, {LABELS[name]}", [n % epochs for n in steps], [0] * len(steps))
    return [
        [batches[e * len(batches) // epochs : (e + 1) * len(batches) // epochs] for e in range(epochs)]
        for batches in evidence[f"{name}.trained"]
    ]


@check(points=3)
def test_all_ranks_call_the_same(evidence):
    """Every rank issues the same collectives in the same order: else one waits for ever, or gets another's numbers."""
    for name in TOGETHER:
        for rank, difference in enumerate(evidence[f"{name}.unrecorded"]):
            if difference:
                not_measurable(
                    f"{LABELS[name]}, rank {rank}: not every collective went through the group: {difference}"
                )
    for name in TOGETHER:
        where = " / ".join(line.strip() for line in evidence[f"{name}.parted"][0].splitlines()[1:])
        equal(f"where they part, {LABELS[name]}", where, "")


@check(points=1)
def test_each_recording_once_an_epoch(evidence, lab):
    """In each epoch a recording is trained on once, by one rank; each has its part. Less than one batch may be odd."""
    m = lab.measurement
    for name in TOGETHER:
        regime, label = m.REGIMES[name], LABELS[name]
        odd = m.BATCH * regime.world - 1
        for ranks in zip(*epochs_of(evidence, name, m.EPOCHS), strict=True):
            by_rank = [list(chain(*batches)) for batches in ranks]
            drawn = list(chain(*by_rank))
            known = set(drawn) - {-1}
            at_most(f"recordings left out of an epoch, {label}", regime.training - len(known), odd)
            at_most(f"recordings drawn again in an epoch, {label}", len(drawn) - len(known), odd)
            part = math.ceil(regime.training / regime.world)
            at_most(f"most drawn by one rank, {label}", max(map(len, by_rank)), part + m.BATCH - 1)
            equal(f"the largest batch, {label}", max(len(b) for batches in ranks for b in batches), m.BATCH)


@check(points=1)
def test_each_epoch_has_an_order_of_its_own(evidence, lab):
    """No rank meets its recordings in the order of another epoch: else every epoch makes the same batches."""
    for name, label in LABELS.items():
        same = [
            np.mean([a == b for a, b in zip(chain(*one), chain(*other), strict=False)])
            for epochs in epochs_of(evidence, name, lab.measurement.EPOCHS)
            for one, other in combinations(epochs, 2)
        ]
        at_most(f"share of recordings at the same place in two epochs, {label}", float(max(same)), 0.5)


@check(points=2)
def test_trains_like_one_process(evidence, lab, references):
    """All ranks hold the same weights, to the last bit, and they are those of one process in float64."""
    for name in TOGETHER:
        weights = [split(lab, state)[0] for state in evidence[f"{name}.state"]]
        at_most(f"spread of the weights, {LABELS[name]}", spread(weights), 0.0)
        demand_the_end(evidence, name)
        at_most(f"error of the update, {LABELS[name]}", references(name).error, BOUND)


@check(points=1)
def test_statistics_are_of_all_ranks(evidence, lab, references):
    """Running mean and variance are the same on all ranks, and speak of what all ranks saw: evaluation uses them."""
    for name in TOGETHER:
        statistics = [split(lab, state)[1] for state in evidence[f"{name}.state"]]
        at_most(f"spread of the running statistics, {LABELS[name]}", spread(statistics), 1e-6)
        demand_the_end(evidence, name)
        error = relative_error(statistics[0], references(name).statistics)
        at_most(f"error of the running statistics, {LABELS[name]}", error, BOUND)


@check(points=1)
def test_one_rank_writes(evidence, inputs, lab):
    """Rank 0 alone writes: a checkpoint of the last epoch that opens in the plain model, with the values it has."""
    for name in LABELS:
        written = evidence[f"{name}.files"]
        equal(f"files of the ranks above 0, {LABELS[name]}", sum(map(len, written[1:])), 0)
        demand_the_end(evidence, name)
        names = ", ".join(evidence[f"{name}.saved.names"][0])
        equal(f"names in the checkpoint, {LABELS[name]}", names, ", ".join(sorted(inputs.state)))
        equal(f"its epoch, {LABELS[name]}", evidence[f"{name}.saved.epoch"][0], lab.measurement.EPOCHS - 1)
        both = [evidence[f"{name}.saved.state"][0], evidence[f"{name}.state"][0]]
        at_most(f"difference of its values from the model's, {LABELS[name]}", spread(both), 0.0)


@check(points=1)
def test_all_ranks_report_the_same(evidence, references):
    """Every rank returns the same losses, and they are the means over all recordings: decisions are made on them."""
    for name in LABELS:
        demand_the_end(evidence, name)
        history = evidence[f"{name}.history"]
        at_most(f"spread of the losses, {LABELS[name]}", spread(history), 1e-6)
        for i, what in enumerate(("loss", "validation loss")):
            error = relative_error(history[0, :, i], references(name).history[:, i])
            at_most(f"error of the {what}, {LABELS[name]}", error, BOUND)


def spread(values):
    """The largest difference between two ranks; nan if one of them has a nan."""
    values = np.asarray(values, dtype=np.float64)
    return float(np.abs(values - values[0]).max())


def split(lab, state):
    """(weights, running statistics) of what `vector` made of a state."""
    ends = np.cumsum([0] + [n for _, n in sizes(lab)])
    pieces = {name: state[a:b] for (name, _), a, b in zip(sizes(lab), ends, ends[1:], strict=False)}
    parts = ([v for k, v in pieces.items() if ("running" in k) == wanted] for wanted in (False, True))
    return [np.concatenate(part).astype(np.float64) for part in parts]


def sizes(lab):
    state = lab.measurement.Bearings().state_dict()
    return [(name, state[name].numel()) for name in sorted(state) if state[name].is_floating_point()]


# ------------------------------------------------------------------------------------------------------- the reference


@dataclass(frozen=True)
class Reference:
    """What one process in float64 comes to on the same batches, and how far the subject's weights are from it."""

    error: float
    statistics: np.ndarray
    history: np.ndarray  # [epochs, 2]


@pytest.fixture(scope="module")
def references(evidence, inputs, lab):
    """By regime, the reference nearest to the subject: there are two right ways to normalise, and two to weigh."""
    known = {}

    def of(name):
        if name not in known:
            ways = [(own, by_rank) for own in (True, False) for by_rank in (True, False)]
            known[name] = nearest(reference(evidence, inputs, lab, name, *way) for way in ways)
        return known[name]

    return of


def nearest(references):
    """The first that is as near as it must be, else the nearest."""
    found = []
    for candidate in references:
        if candidate.error <= BOUND:
            return candidate
        found.append(candidate)
    return min(found, key=lambda r: math.inf if math.isnan(r.error) else r.error)


def reference(evidence, inputs, lab, name, own, by_rank):
    """Train one model on the recordings that the ranks drew.

    own: each rank's batch is normalised by itself, else all of them together. by_rank: the gradient is the mean of the
    ranks' means, else the mean over recordings; the two differ where batches do.
    """
    m = lab.measurement
    model = m.Bearings().double()
    model.load_state_dict(inputs.state)
    start, _ = split(lab, m.vector(model.state_dict()))
    optimizer = m.optimizer_of(model)
    ranks = epochs_of(evidence, name, m.EPOCHS)
    history = []
    for epoch in range(m.EPOCHS):
        losses = one_epoch(model, optimizer, [batches[epoch] for batches in ranks], inputs.training[name], own, by_rank)
        vibration, condition = inputs.validation[name].tensors
        with torch.no_grad():
            validation = F.cross_entropy(model.eval()(vibration.double()), condition)
        history.append([np.mean(losses), validation.item()])
    weights, statistics = split(lab, np.concatenate([v.detach().numpy().ravel() for v in floating(model)]))
    got, _ = split(lab, evidence[f"{name}.state"][0])
    return Reference(relative_error(got - start, weights - start), statistics, np.array(history))


def floating(model):
    state = model.state_dict()
    return [state[name] for name in sorted(state) if state[name].is_floating_point()]


def one_epoch(model, optimizer, ranks, recordings, own, by_rank):
    """The loss of every recording that was drawn; running statistics become the mean of all ranks'."""
    kept = [[b.clone() for b in (model.norm.running_mean, model.norm.running_var)] for _ in ranks]
    losses = []
    for step in range(max(map(len, ranks))):
        batches = {r: batches[step] for r, batches in enumerate(ranks) if step < len(batches)}
        each = forward(model, batches, recordings, kept, own)
        total = sum(map(len, batches.values()))
        weights = [1 / (len(ranks) * len(b)) if by_rank else 1 / total for b in batches.values() for _ in b]
        optimizer.zero_grad()
        (each * torch.tensor(weights, dtype=torch.float64)).sum().backward()
        optimizer.step()
        losses += each.tolist()
    with torch.no_grad():
        for at, buffer in enumerate((model.norm.running_mean, model.norm.running_var)):
            buffer.copy_(torch.stack([statistics[at] for statistics in kept]).mean(0))
    return losses


def forward(model, batches, recordings, kept, own):
    """The loss of each recording, batch after batch; `kept` holds the running statistics of each rank."""
    model.train()
    vibration, condition = recordings.tensors
    logits = []
    for ranks in [[r] for r in batches] if own else [list(batches)]:
        norm = model.norm
        norm.running_mean, norm.running_var = (value.clone() for value in kept[ranks[0]])  # backward needs the old ones
        logits.append(model(vibration[[place for r in ranks for place in batches[r]]].double()))
        for r in ranks:
            kept[r] = [norm.running_mean, norm.running_var]
    return F.cross_entropy(torch.cat(logits), condition[[p for b in batches.values() for p in b]], reduction="none")
