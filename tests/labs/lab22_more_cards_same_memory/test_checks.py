# starter: test_fits_the_card test_share_falls_with_ranks
"""The state of one model fits ranks that cannot hold it alone, and all else stays as one process would do it."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from breakfix.checks import at_least, at_most, check, equal, not_measurable
from breakfix.probes.parity import relative_error

CARD = 3.9  # P, the bytes of the parameters
AT_ONCE = 0.25  # P
SPARE = 1.05  # shares are not all alike
UPDATE_BOUND, VALUE_BOUND = 3e-4, 1e-4  # relative
LABELS = {"two": "2 ranks", "four": "4 ranks", "one": "1 rank"}


def demand_that_all_was_seen(evidence):
    """What was counted inside must be what PyTorch recorded."""
    for name, label in LABELS.items():
        for rank, difference in enumerate(evidence[f"{name}.disagreement"]):
            if difference:
                not_measurable(f"{label}, rank {rank}: not all traffic went through the group: {difference}")


@check(points=2)
def test_fits_the_card(evidence):
    """At no moment of a step do the tensors of a rank need more than 3.9 P, what is gathered included."""
    demand_that_all_was_seen(evidence)
    for name in ("two", "four"):
        at_most(f"peak of the fullest rank, {LABELS[name]}", float(evidence[f"{name}.peak"].max()), CARD, "P")


@check(points=1)
def test_share_falls_with_ranks(evidence):
    """Between steps a rank of N keeps at most 2 P and 2 P / N, and of four less than of two: more cards, less memory each."""
    held = {name: float(evidence[f"{name}.held"].max()) for name in ("two", "four")}
    for name, world in (("two", 2), ("four", 4)):
        at_most(f"kept between steps, {LABELS[name]}", held[name], SPARE * (2 + 2 / world), "P")
    at_least("less with 4 ranks than with 2", held["two"] - held["four"], 0.4, "P")


@check(points=1)
def test_gathers_a_part_at_a_time(evidence):
    """No all-gather of a step brings more than P / 4 together: a model that is whole again has to fit again."""
    for name in ("two", "four"):
        at_most(f"gathered at once, {LABELS[name]}", float(evidence[f"{name}.gathered"].max()), AT_ONCE, "P")


@check(points=2)
def test_trains_like_one_process(evidence, inputs, lab):
    """Weights, losses and samples are those of one process in float64: sharding changes no number."""
    losses, _, weights = reference(inputs, lab.measurement)
    got = evidence["two.weights"].astype(np.float64) - weights[0]
    at_most("error of the update, 2 ranks", worst(got, weights[-1] - weights[0]), UPDATE_BOUND)
    at_most("error of the losses, 2 ranks", loss_error(evidence, "two", losses), VALUE_BOUND)
    samples = np.array(evidence["two.samples"])
    equal("samples per step, 2 ranks", samples, np.full_like(samples, lab.measurement.SAMPLES // 2))


@check(points=1)
def test_norm_is_of_the_whole_gradient(evidence, inputs, lab):
    """The norm that is returned, and so logged, is that of the whole gradient, on every rank, clipped or not."""
    _, norms, _ = reference(inputs, lab.measurement)
    first = slice(lab.measurement.SAVED_AFTER)  # later ones depend on weights that were clipped by it
    equal("of two steps, those that clip", int((norms[first] > lab.measurement.MAX_NORM).sum()), 1)
    at_most("error of the norm, 2 ranks", worst(evidence["two.norm"][:, first], norms[first]), VALUE_BOUND)


@check(points=1)
def test_ranks_stay_equal(evidence):
    """All ranks give the same whole weights, to the last bit: whose shards went astray has another model."""
    for name in ("two", "four"):
        at_most(f"different sets of weights, {LABELS[name]}", len(set(evidence[f"{name}.digest"])), 1)


@check(points=2)
def test_goes_on_with_other_ranks(evidence, inputs, lab):
    """What two ranks saved goes on with four and with one as though nothing had happened, moments included."""
    losses, _, weights = reference(inputs, lab.measurement)
    saved = weights[lab.measurement.SAVED_AFTER]
    for name in ("four", "one"):
        got = evidence[f"{name}.weights"].astype(np.float64) - saved
        at_most(f"error of the update since, {LABELS[name]}", worst(got, weights[-1] - saved), UPDATE_BOUND)
        at_most(f"error of the losses, {LABELS[name]}", loss_error(evidence, name, losses), VALUE_BOUND)


def worst(ranks, wanted):
    """The largest relative error of any rank; nan if one is nan."""
    return float(np.max([relative_error(got, wanted) for got in ranks]))


def loss_error(evidence, name, losses):
    """Of each rank's mean loss of its own samples, in the steps that this number of ranks took."""
    found = evidence[f"{name}.loss"]
    world, steps = found.shape
    means = losses[-steps:].reshape(steps, world, -1).mean(-1).T
    return relative_error(found, means)


# ------------------------------------------------------------------------------------------------------- the reference


class Encoder(nn.Module):
    """The model of the measurement, once more: the reference depends on nothing that a subject ran with."""

    def __init__(self, m):
        super().__init__()
        self.stem = nn.Linear(m.FEATURES, m.WIDTH)
        self.blocks = nn.ModuleList(block(m.WIDTH) for _ in range(m.DEPTH))
        self.head = nn.Linear(m.WIDTH, m.CLASSES)

    def forward(self, inputs):
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)


def block(width):
    return nn.Sequential(nn.RMSNorm(width), nn.Linear(width, width, bias=False), nn.GELU())


def reference(inputs, m):
    """Loss of every sample, norm of the gradient and the sampled weights, step by step, in float64 in one process."""
    model = Encoder(m).double()
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), inputs.weights, strict=True):
            parameter.copy_(values)
    optimizer = torch.optim.AdamW(model.parameters(), m.LR, betas=m.BETAS, eps=m.EPS, weight_decay=m.DECAY)
    losses, norms, weights = [], [], [looked_at(model, inputs.places)]
    for features, targets in inputs.batches:
        each = F.cross_entropy(model(features.double()), targets, reduction="none")
        optimizer.zero_grad()
        each.mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), m.MAX_NORM).item())
        optimizer.step()
        losses.append(each.detach().numpy())
        weights.append(looked_at(model, inputs.places))
    return np.array(losses), np.array(norms), np.stack(weights)


def looked_at(model, places):
    return np.stack([p.detach().ravel()[at].numpy() for p, at in zip(model.parameters(), places, strict=True)])
