# starter: test_loss_and_gradients_are_finite test_equals_float64 test_a_constant_changes_nothing test_no_position_stops_learning test_nothing_to_predict_is_zero test_training_reports_finite_steps
"""The loss is finite on every batch, and it is still the same loss."""

import numpy as np
import torch

from breakfix.checks import at_least, at_most, check, equal
from breakfix.probes.parity import relative_error

BATCHES = ("ragged", "full", "empty", "confident")
BOUNDS = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 3e-2}


def demand_an_answer(evidence, name, dtype="float32"):
    """Demand that loss_fn and its backward raised nothing on this batch."""
    equal(f"raised on {name}, {dtype}", evidence[f"{dtype}.{name}.raised"] or "nothing", "nothing")


def reference(batch, dtype):
    """Loss and gradient in float64, position by position, of the logits as `dtype` rounds them."""
    logits = batch.logits.to(getattr(torch, dtype)).double()
    gradient, total = torch.zeros_like(logits), 0.0
    counting = (batch.targets != -100).nonzero().tolist()
    for b, t in counting:
        allowed, target = batch.mask[b, t], batch.targets[b, t]
        normalizer = torch.logsumexp(logits[b, t][allowed], 0)
        total += normalizer - logits[b, t, target]
        gradient[b, t][allowed] = torch.exp(logits[b, t][allowed] - normalizer)
        gradient[b, t, target] -= 1
    count = max(len(counting), 1)
    return float(total) / count, (gradient / count).numpy()


def long_loss(batch):
    """Loss in float64 of a float16 batch in which every position allows a token, all positions at once."""
    logits, counted = batch.logits.half().double(), batch.targets != -100
    normalizer = logits.masked_fill(~batch.mask, float("-inf")).logsumexp(-1)
    chosen = logits.gather(-1, batch.targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return float((normalizer - chosen)[counted].mean())


@check(points=2)
def test_loss_and_gradients_are_finite(evidence):
    """The loss and every gradient are finite, on every kind of batch and in every dtype; a long batch's loss too."""
    for dtype in BOUNDS:
        for name in BATCHES:
            demand_an_answer(evidence, name, dtype)
            values = np.append(evidence[f"{dtype}.{name}.grad"], evidence[f"{dtype}.{name}.loss"])
            at_most(f"values not finite, {dtype} {name}", int((~np.isfinite(values)).sum()), 0)
    demand_an_answer(evidence, "long", "float16")
    equal("loss is finite, float16 long", bool(np.isfinite(evidence["float16.long.loss"])), True)


@check(points=3)
def test_equals_float64(evidence, inputs):
    """Loss and gradient equal the float64 reference: a loss that is merely finite may be another loss."""
    for dtype, bound in BOUNDS.items():
        for name in ("ragged", "full", "confident"):
            demand_an_answer(evidence, name, dtype)
            loss, gradient = reference(inputs[name], dtype)
            at_most(f"loss error, {dtype} {name}", relative_error(evidence[f"{dtype}.{name}.loss"], loss), bound)
            at_most(
                f"gradient error, {dtype} {name}", relative_error(evidence[f"{dtype}.{name}.grad"], gradient), bound
            )
    demand_an_answer(evidence, "long", "float16")
    error = relative_error(evidence["float16.long.loss"], long_loss(inputs["long"]))
    at_most("loss error, float16 long", error, BOUNDS["float16"])


@check(points=1)
def test_a_constant_changes_nothing(evidence, inputs):
    """Adding -30000 to all logits changes nothing: a softmax knows only differences."""
    demand_an_answer(evidence, "shift")
    loss, gradient = reference(inputs["shift"], "float32")
    at_most("loss error, logits moved", relative_error(evidence["float32.shift.loss"], loss), 2e-2)
    at_most("gradient error, logits moved", relative_error(evidence["float32.shift.grad"], gradient), 2e-2)


@check(points=1)
def test_no_position_stops_learning(evidence, inputs):
    """Every position that counts keeps its gradient, the most confidently wrong one too."""
    for name in ("ragged", "confident"):
        demand_an_answer(evidence, name)
        wanted = np.linalg.norm(reference(inputs[name], "float32")[1], axis=-1)
        got = np.linalg.norm(evidence[f"float32.{name}.grad"], axis=-1)
        alive = wanted > 1e-3 * wanted.max()  # a position that is right already has next to no gradient
        at_least(f"weakest gradient against the reference, {name}", float((got[alive] / wanted[alive]).min()), 0.95)


@check(points=1)
def test_nothing_to_predict_is_zero(evidence):
    """A batch with nothing to predict gives loss 0 with a graph, and a gradient of zeros."""
    for dtype in BOUNDS:
        demand_an_answer(evidence, "empty", dtype)
        equal(f"loss, {dtype} empty", float(evidence[f"{dtype}.empty.loss"]), 0.0)
        equal(f"has a graph, {dtype} empty", evidence[f"{dtype}.empty.has_grad_fn"], True)
        at_most(f"gradient norm, {dtype} empty", float(np.linalg.norm(evidence[f"{dtype}.empty.grad"])), 0.0)


@check(points=1)
def test_a_real_fault_stays_visible(evidence, lab):
    """A logit or a weight that really is nan shows in the loss: hiding a nan is not fixing it."""
    for name in ("nan", "posinf"):
        equal(f"loss is finite, {name} logit", bool(np.isfinite(evidence[f"float32.{name}.loss"])), False)
    if not evidence["poisoned.raised"]:
        after = evidence["poisoned.loss"][lab.measurement.POISONED_AT :]
        equal(
            "steps reported after a weight became nan", len(after), lab.measurement.STEPS - lab.measurement.POISONED_AT
        )
        at_most("of them with a finite loss", int(np.isfinite(after).sum()), 0)


def log_sums(steps):
    """The sum of the tokens in each batch of the command log, drawn as the starter's sample_batch draws them."""
    generator, sums = torch.Generator().manual_seed(11), []
    for step in range(steps):
        sums.append(int(torch.randint(48, (8, 12), generator=generator).sum()))
        torch.rand(8, 12, 48, generator=generator)
        if step % 5 == 4:
            torch.randint(3, 13, (8,), generator=generator)
    return sums


@check(points=1)
def test_training_reports_finite_steps(evidence, lab):
    """A training run uses every batch of the log, reports each step, all of them finite, and learns."""
    sums = evidence["history.token_sums"].tolist()
    equal("batches trained on, in the order of the log", sums == log_sums(lab.measurement.STEPS), True)
    equal("steps reported", len(evidence["history.loss"]), lab.measurement.STEPS)
    for name in ("loss", "grad_norm"):
        at_most(f"steps with {name} not finite", int((~np.isfinite(evidence[f"history.{name}"])).sum()), 0)
    first, last = (float(part.mean()) for part in (evidence["history.loss"][:5], evidence["history.loss"][-5:]))
    at_most("loss of the last five steps against the first five", last / first, 0.8)
