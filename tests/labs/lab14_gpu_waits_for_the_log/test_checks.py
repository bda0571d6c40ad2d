# starter: test_reads_do_not_grow_with_the_steps test_three_steps_are_traced
"""The log says all that it said, a fault is loud, a trace is there, and the device is asked a few times per interval."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from breakfix.checks import at_least, at_most, check, equal
from breakfix.probes.parity import relative_error

PER_INTERVAL = 5  # reads; and as many once more, before the first step or after the last
BOUNDS = {"cpu": 1e-4, "cuda": 1e-3}  # sixty steps in float32 against float64
TAGS = ("loss/mean", "accuracy", "grad_norm")


class Reference:
    """Sixty steps in float64: the loss of each, the sums that the metrics are made of, the parameters afterwards."""

    def __init__(self, lab, inputs):
        given = lab.measurement
        model = given.reference().double()
        model.load_state_dict({name: value.double() for name, value in inputs.parameters.items()})
        optimizer = torch.optim.SGD(model.parameters(), lr=given.LEARNING_RATE)
        self.losses, self.norms, self.sizes, self.right = [], [], [], []
        for x, y in inputs.batches:
            logits = model(x.double())
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            self.norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), given.NORM).item())
            optimizer.step()
            self.losses.append(loss.item())
            self.sizes.append(len(y))
            self.right.append(int((logits.argmax(1) == y).sum()))
        self.parameters = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()

    def log(self, every):
        """The steps at which the metrics are logged, and their values by tag."""
        ends = sorted({*range(every, len(self.losses) + 1, every), len(self.losses)})
        parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        losses, sizes, right, norms = (np.array(v) for v in (self.losses, self.sizes, self.right, self.norms))
        values = {
            "loss/mean": [float((losses[p] * sizes[p]).sum() / sizes[p].sum()) for p in parts],
            "accuracy": [float(right[p].sum() / sizes[p].sum()) for p in parts],
            "grad_norm": [float(norms[p].max()) for p in parts],
        }
        return ends, values


@pytest.fixture(scope="module")
def reference(lab, inputs):
    return Reference(lab, inputs)


@check(points=3)
def test_reads_do_not_grow_with_the_steps(evidence, lab):
    """The device is asked a few times per interval, however many steps that has: each time it must finish first."""
    for name, every in lab.measurement.EVERY.items():
        intervals = math.ceil(lab.measurement.STEPS / every)
        at_most(f"reads in {intervals} intervals, {name}", evidence[f"{name}.reads"], PER_INTERVAL * (intervals + 1))
        if evidence[f"{name}.trace.steps"]:
            at_most(f"of them in the trace, {name}", evidence[f"{name}.trace.reads"], PER_INTERVAL)


@check(points=2)
def test_the_log_equals_float64(evidence, lab, reference, device):
    """Each step's loss is logged under its step, and the metrics of each interval, the last and shorter one too."""
    for name, every in lab.measurement.EVERY.items():
        steps = evidence[f"{name}.log.loss.steps"]
        equal(f"losses logged, {name}", len(steps), lab.measurement.STEPS)
        equal(f"under the numbers of their steps, {name}", steps == [*range(1, len(steps) + 1)], True)
        error = relative_error(evidence[f"{name}.log.loss"], reference.losses)
        at_most(f"error of the losses, {name}", error, _near(device))
        equal(f"values written when another interval had begun, {name}", evidence[f"{name}.log.late"], 0)
        ends, values = reference.log(every)
        for tag in TAGS:
            equal(f"steps at which {tag} is logged, {name}", evidence[f"{name}.log.{tag}.steps"], ends)
            error = relative_error(evidence[f"{name}.log.{tag}"], values[tag])
            # a sample that float32 sorts into another kind is no fault: it is 1 of some 160 in the shortest interval
            at_most(f"error of {tag}, {name}", error, 1e-2 if tag == "accuracy" else _near(device))


@check(points=2)
def test_a_nan_is_logged_at_its_step_and_stops_the_run(evidence, lab, reference, device):
    """A loss that is nan stands in the log under its own step, and ends the run before another interval begins."""
    at = lab.measurement.BROKEN_AT
    steps, losses = evidence["broken sensor.log.loss.steps"], evidence["broken sensor.log.loss"]
    at_least("losses logged", len(losses), at)
    equal("under the numbers of their steps", steps == [*range(1, len(steps) + 1)], True)
    at_most(
        "error of the losses before it", relative_error(losses[: at - 1], reference.losses[: at - 1]), _near(device)
    )
    equal(f"loss of step {at} is nan", bool(np.isnan(losses[at - 1])), True)
    equal("raised", evidence["broken sensor.raised"], "FloatingPointError")
    at_most("steps begun", evidence["broken sensor.steps_begun"], 40)


@check(points=1)
def test_nothing_is_kept(evidence, lab):
    """What is kept for the log holds no graph, and is let go of once it is logged: memory does not grow."""
    for name in lab.measurement.EVERY:
        at_most(
            f"tensors with a graph, late in an interval against early, {name}", evidence[f"{name}.graphs_grow_by"], 2
        )
        at_most(f"tensors, in a later interval against the first, {name}", evidence[f"{name}.tensors_grow_by"], 6)


@check(points=1)
def test_three_steps_are_traced(evidence, lab):
    """One Chrome trace is there, and it shows three training steps: the whole run would fill the disk."""
    for name in lab.measurement.EVERY:
        equal(f"readable traces, {name}", evidence[f"{name}.trace.files"], 1)
        equal(f"steps in it, {name}", evidence[f"{name}.trace.steps"], lab.measurement.ACTIVE)
        equal(f"updates in it, {name}", evidence[f"{name}.trace.updates"], lab.measurement.ACTIVE)


@check(points=1)
def test_training_is_what_it_was(evidence, lab, reference, device):
    """The parameters after sixty steps equal the reference: no step was skipped, none was clipped otherwise."""
    for name in lab.measurement.EVERY:
        equal(f"steps begun, {name}", evidence[f"{name}.steps_begun"], lab.measurement.STEPS)
        equal(f"raised, {name}", evidence[f"{name}.raised"], "")
        at_most(
            f"error of the parameters, {name}",
            relative_error(evidence[f"{name}.parameters"], reference.parameters),
            _near(device),
        )


def _near(device):
    return BOUNDS[device.type]
