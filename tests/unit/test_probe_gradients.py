"""The gradients probe against exact arithmetic, NumPy's float16, rounding by bits, and what plain SGD does."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from breakfix.probes.gradients import Gradients

integers = st.lists(st.integers(-50, 50), min_size=1, max_size=8)


class Weights(nn.Module):
    """One vector of weights; its loss has the gradient that it is given."""

    def __init__(self, values, dtype=torch.float32):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=dtype))

    def loss(self, gradient):
        return (self.w * torch.as_tensor(gradient, dtype=self.w.dtype)).sum()


def optimizer_of(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.5, **options)


def one_step(model, optimizer, gradient, scaler=None):
    """One training step under the probe."""
    with Gradients(model) as watched:
        optimizer.zero_grad()
        loss = model.loss(gradient)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        watched.end_step()
    return watched


def test_importing_it_imports_nothing_else_of_breakfix():
    code = "import sys, breakfix.probes.gradients; print(sorted(m for m in sys.modules if m.startswith('breakfix')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['breakfix', 'breakfix.probes', 'breakfix.probes.gradients']"


# -------------------------------------------------------------------------------------------- what the optimizer gets


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@settings(deadline=None, max_examples=40)
@given(integers)
def test_the_gradient_is_what_plain_sgd_moves_the_weights_by(fused, scaled, gradient):
    """In integers nothing is rounded: weights before less weights after, over the learning rate, is the gradient."""
    model = Weights([float(i) for i in range(len(gradient))])
    before = model.w.detach().clone()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
    watched = one_step(model, optimizer_of(model, fused=fused), [float(g) for g in gradient], scaler)
    assert torch.equal(watched.gradients["w"], (before - model.w.detach()) / 0.5)
    (step,) = watched.steps
    assert step.calls == 1
    assert step.scale == (1024.0 if fused and scaled else 1.0)
    assert step.norm == pytest.approx(math.sqrt(sum(g * g for g in gradient)), rel=1e-12)
    assert step.zeros == gradient.count(0) / len(gradient)
    assert step.moved == 1 - step.zeros


def test_it_sees_what_clipping_and_unscaling_have_left():
    model = Weights([1.0, 2.0])
    optimizer, scaler = optimizer_of(model), torch.amp.GradScaler("cpu")
    with Gradients(model) as watched:
        scaler.scale(model.loss([3.0, 4.0])).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        watched.end_step()
    assert watched.steps[0].norm == pytest.approx(1.0, rel=1e-5)


def test_the_gradients_are_copies_and_belong_to_the_latest_step():
    model = Weights([1.0])
    watched = one_step(model, optimizer_of(model), [2.0])
    model.w.grad.fill_(7)
    assert watched.gradients["w"].tolist() == [2.0]
    watched.end_step()
    assert watched.gradients == {}


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(2.0**-28, 2.0**-20), min_size=1, max_size=8))
def test_zeros_are_what_numpys_float16_rounds_to_zero(gradient):
    model = Weights([1.0] * len(gradient))

    def loss(values):
        return (model.w.half().float() * torch.tensor(values)).sum()  # the cast's backward rounds to float16

    model.loss = loss
    (seen,) = one_step(model, optimizer_of(model), gradient).steps[0].parameters
    assert seen.zeros == int((np.array(gradient, np.float32).astype(np.float16) == 0).sum())


def test_a_sparse_gradient_counts_with_its_zeros():
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    with Gradients(table) as watched:
        table(torch.tensor([1, 1, 3])).sum().backward()
        optimizer.step()
        (seen,) = watched.end_step().parameters
    assert (seen.zeros, seen.moved, seen.elements) == (6, 4, 10)
    assert seen.norm == pytest.approx(math.sqrt(2 * (2**2 + 1**2)))


# -------------------------------------------------------------------------------------------- whether weights move


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_moves_nothing_and_halves_the_scale(fused):
    """Judged by the weights: a fused optimizer's step runs all the same."""
    model = Weights([1.0, 2.0])
    scaler = torch.amp.GradScaler("cpu")
    (step,) = one_step(model, optimizer_of(model, fused=fused), [math.inf, 1.0], scaler).steps
    assert (step.calls, step.moved) == (int(fused), 0.0)
    assert scaler.get_scale() == 65536 / 2
    if fused:
        assert step.parameters[0].not_finite == 1
        assert step.norm == math.inf


def nearest_bfloat16(value: float) -> float:
    """The bfloat16 nearest to a float32, ties to even, from its bits."""
    bits = int(np.float32(value).view(np.uint32))
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(np.uint32(bits & 0xFFFF0000).view(np.float32))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(2.0**-12, 2.0**-4)), min_size=1, max_size=8))
def test_stuck_are_the_weights_whose_step_bfloat16_rounds_away(pairs):
    weights = [nearest_bfloat16(w) for w, _ in pairs]
    gradient = [nearest_bfloat16(g) for _, g in pairs]
    model = Weights(weights, torch.bfloat16)
    (seen,) = one_step(model, optimizer_of(model), gradient).steps[0].parameters
    stay = [nearest_bfloat16(w - 0.5 * g) == w for w, g in zip(weights, gradient, strict=True)]
    assert (seen.stuck, seen.moved) == (sum(stay), len(stay) - sum(stay))


def test_weights_that_somebody_else_changes_have_moved_too():
    model = Weights([1.0, 2.0])
    with Gradients(model) as watched:
        with torch.no_grad():
            model.w[0] = 5.0
        (seen,) = watched.end_step().parameters
    assert (watched.steps[0].calls, seen.norm, seen.moved) == (0, None, 1)
    assert math.isnan(watched.steps[0].zeros)


# ---------------------------------------------------------------------------------------- whom it watches, and when


def test_every_optimizer_of_the_module_and_no_other():
    model, other = nn.ModuleDict({"a": Weights([1.0]), "b": Weights([2.0])}), Weights([3.0])
    optimizers = [optimizer_of(m) for m in (model["a"], model["b"], other)]
    with Gradients(model) as watched:
        for part in (model["a"], model["b"], other):
            part.loss([4.0]).backward()
        for optimizer in optimizers:
            optimizer.step()
        step = watched.end_step()
    assert step.calls == 2
    assert {seen.name: seen.norm for seen in step.parameters} == {"a.w": 4.0, "b.w": 4.0}


def test_it_leaves_no_hook_behind():
    model = Weights([1.0])
    watched = one_step(model, optimizer_of(model), [1.0])
    model.loss([1.0]).backward()
    optimizer_of(model).step()
    assert watched.end_step().calls == 0


def test_the_report_has_a_line_for_each_parameter():
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    with Gradients(model) as watched:
        model(torch.ones(1, 2)).sum().backward()
        optimizer_of(model).step()
        watched.end_step()
        watched.end_step()
    head, columns, weight, bias = watched.report().splitlines()
    assert head == "2 training steps: an optimizer ran in 1, a weight moved in 1"
    assert columns.split() == ["last", "norm", "zeros", "moved", "stuck", "not", "finite"]
    assert weight.split() == ["weight", "1.41e+00", "0.0%", "50.0%", "0.0%", "0"]
    assert bias.split() == ["bias", "none", "-", "0.0%", "-", "0"]
