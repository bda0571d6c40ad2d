# starter: test_gradient_travels_once test_few_collectives test_every_message_is_needed
"""The ranks send each gradient once per optimizer step, in few messages, and train as one process would."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from breakfix.checks import at_least, at_most, check, equal, not_measurable
from breakfix.probes.parity import relative_error
from breakfix.probes.traffic import Collective, sent_bytes

LABELS = {
    "two": "2 ranks, 4 micro-batches",
    "two.ragged": "2 ranks, 3 of unequal size",
    "two.single": "2 ranks, 1 micro-batch",
    "four": "4 ranks, 2 of unequal size",
}
BUCKET = 25 * 2**20  # bytes, DDP's default
SPARE = 3  # collectives beside the full buckets: a small first one, a count of samples, one more
UPDATE_BOUND = {False: 1e-3, True: 3e-2}  # relative, by whether the gradients travelled in 16 bits
LOSS_BOUND = {False: 1e-4, True: 1e-2}
RANGE_BOUND = 3e-2  # bfloat16 keeps two to three digits
SIXTEEN_BITS = ("float16", "bfloat16")


def steps_of(evidence, name):
    """The settled steps of each rank: [rank][step] -> collectives."""
    return [[[Collective(*c) for c in step] for step in rank] for rank in evidence[f"{name}.collectives"]]


def every_step(evidence, name):
    return [step for rank in steps_of(evidence, name) for step in rank]


def demand_that_all_was_seen(evidence, outside, device):
    """What was counted inside must be what PyTorch recorded, and what left the ranks according to the kernel."""
    for name, label in LABELS.items():
        for rank, difference in enumerate(evidence[f"{name}.disagreement"]):
            if difference:
                not_measurable(f"{label}, rank {rank}: not all traffic went through the group: {difference}")
    sent, wire = evidence["wire_bytes"], outside.get("wire_bytes")
    on_loopback = wire is not None and device.type == "cpu"
    if on_loopback and not 0.99 * sent <= wire <= 1.25 * sent + 4e6:
        not_measurable(f"the ranks counted {sent / 1e6:.1f} MB, {wire / 1e6:.1f} MB went over their loopback")


@check(points=2)
def test_gradient_travels_once(evidence, outside, lab, device):
    """Per optimizer step each rank sends what one all-reduce of the gradient takes, in 32 or in 16 bits."""
    demand_that_all_was_seen(evidence, outside, device)
    for name, label in LABELS.items():
        world = lab.measurement.REGIMES[name].world
        once = sent_bytes(Collective("all_reduce", lab.measurement.GRADIENT_BYTES, "float32"), world)
        sent = [sum(sent_bytes(c, world) for c in step) / once for step in every_step(evidence, name)]
        at_most(f"gradients sent per step, {label}", max(sent), 1.05)
        at_least(f"least gradients sent per step, {label}", min(sent), 0.45)


@check(points=2)
def test_few_collectives(evidence, lab):
    """Collectives per optimizer step are few: each one costs the link's latency, however small it is."""
    bound = math.ceil(lab.measurement.GRADIENT_BYTES / BUCKET) + SPARE
    for name, label in LABELS.items():
        at_most(f"collectives per step, {label}", max(map(len, every_step(evidence, name))), bound)


@check(points=1)
def test_every_message_is_needed(evidence, lab):
    """Settled ranks have nothing to tell each other but gradients and a count: no message is about anything else."""
    for name, label in LABELS.items():
        smallest = 4 * lab.measurement.TENSORS  # one int32 for each parameter: whether it was used
        found = [sum(c.dtype == "int32" and c.bytes >= smallest for c in step) for step in every_step(evidence, name)]
        at_most(f"other messages per step, {label}", max(found), 0)


@check(points=1)
def test_ranks_stay_equal(evidence):
    """After the last step all ranks hold the same weights, to the last bit."""
    for name, label in LABELS.items():
        weights = evidence[f"{name}.weights"].astype(np.float64)
        at_most(f"spread of the weights, {label}", float(np.abs(weights - weights[0]).max()), 0.0)
        at_most(f"different sets of weights, {label}", len(set(evidence[f"{name}.digest"])), 1)


@check(points=2)
def test_trains_like_one_process(evidence, inputs, lab):
    """Weights and losses equal those of one process, in float64, on the samples of all ranks together."""
    for name, label in LABELS.items():
        update, losses = reference(inputs, name, lab.measurement)
        start = np.stack([w.ravel()[at].numpy() for w, at in zip(inputs.weights, inputs.places, strict=True)])
        short = halved(evidence, name)
        got = evidence[f"{name}.weights"].astype(np.float64) - start
        at_most(f"error of the update, {label}", worst(got, update), UPDATE_BOUND[short])
        error = relative_error(evidence[f"{name}.losses"], losses)
        at_most(f"error of the losses, {label}", error, LOSS_BOUND[short])
        sizes = [[sum(len(y) for _, y in step) for step in rank] for rank in inputs.batches[name]]
        equal(f"samples forwarded, {label}", np.array(evidence[f"{name}.samples"]), np.array(sizes))


def worst(ranks, wanted):
    """The largest relative error of any rank; nan if one is nan."""
    return float(np.max([relative_error(got, wanted) for got in ranks]))


def halved(evidence, name):
    """Whether most bytes travelled in 16 bits."""
    sizes = [(c.dtype in SIXTEEN_BITS, c.bytes) for step in every_step(evidence, name) for c in step]
    return sum(size for short, size in sizes if short) > sum(size for short, size in sizes if not short)


@check(points=1)
def test_one_micro_batch_at_a_time(evidence, inputs):
    """No more samples wait for their backward than one micro-batch has: the activations of two do not fit."""
    for name, label in LABELS.items():
        largest = [[max(len(y) for _, y in step) for step in rank] for rank in inputs.batches[name]]
        share = np.array(evidence[f"{name}.held"]) / np.array(largest)
        at_most(f"micro-batches in memory at once, {label}", float(share.max()), 1.0)


@check(points=1)
def test_range_survives(evidence, inputs, lab):
    """A gradient of a million and one of a billionth arrive: who halves the bytes must not lose the range."""
    for world, batches in inputs.wide.items():
        mean = reference_of_wide(batches, lab.measurement.CLASSES)
        for name, factor in (("large", lab.measurement.LARGE), ("small", lab.measurement.SMALL)):
            error = worst(evidence[f"wide.{world}.{name}"], -factor * mean)
            at_most(f"error of the {name} gradient, {world} ranks", error, RANGE_BOUND)


# ------------------------------------------------------------------------------------------------------- the reference


class Tower(nn.Module):
    """The model of the measurement, once more: the reference depends on nothing that a subject ran with."""

    def __init__(self, features, width, depth, classes):
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(depth))
        self.head = nn.Linear(width, classes)
        self.depth = depth

    def forward(self, inputs):
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = hidden + F.gelu(block(hidden)) / self.depth
        return self.head(hidden)


def reference(inputs, name, m):
    """The update of the sampled weights after all steps, and each rank's loss per step, in float64 in one process."""
    model = Tower(m.FEATURES, m.WIDTH, m.DEPTH, m.CLASSES).double()
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), inputs.weights, strict=True):
            parameter.copy_(values)
    optimizer = m.REGIMES[name].optimizer(model.parameters())
    start = looked_at(model, inputs.places)
    losses = [one_step(model, optimizer, ranks) for ranks in zip(*inputs.batches[name], strict=True)]
    return looked_at(model, inputs.places) - start, np.array(losses).T


def one_step(model, optimizer, ranks):
    """One step on the mean over the samples of all ranks; the mean loss of each rank's own samples."""
    features, targets = (torch.cat([batch[i] for rank in ranks for batch in rank]) for i in (0, 1))
    each = F.cross_entropy(model(features.double()), targets, reduction="none")
    optimizer.zero_grad()
    each.mean().backward()
    optimizer.step()
    return [own.mean().item() for own in each.split([sum(len(y) for _, y in rank) for rank in ranks])]


def looked_at(model, places):
    return np.stack([p.detach().ravel()[at].numpy() for p, at in zip(model.parameters(), places, strict=True)])


def reference_of_wide(batches, classes):
    """The gradient of the mean loss by the logits' bias: all weights are zero, so every class is equally likely."""
    targets = torch.cat([y for _, y in batches])
    share = torch.bincount(targets, minlength=classes).double() / len(targets)
    return (1 / classes - share).numpy()
