"""Measure lab08: loss and gradient on batches of several kinds and dtypes, then two training runs, one poisoned."""

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from breakfix.contract import Contract, describe, expect, function

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
IGNORE, STEPS, POISONED_AT = -100, 40, 20
SHIFT, HIGH = -3e4, 200.0
LONG = 3.0  # the long batch's logits are scaled by it, so that the sum of its losses is beyond float16
LOUD = (ArithmeticError, RuntimeError, ValueError, AssertionError)


@dataclass(frozen=True)
class Batch:
    """logits [B, T, V] float32, targets [B, T], mask [B, T, V]."""

    logits: Tensor
    targets: Tensor
    mask: Tensor

    def with_logits(self, logits: Tensor) -> "Batch":
        return Batch(logits, self.targets, self.mask)


def inputs(seed: int) -> dict[str, Batch]:
    """The batches that `seed` draws, by name."""
    g = torch.Generator().manual_seed(seed)
    ragged, full = _draw(g, lengths=[6, 2, 4, 1, 5]), _draw(g, lengths=[6] * 5)
    long = _draw(g, lengths=[512] * 64, positions=512, vocabulary=8)
    # the sum of these logits is beyond float16, though each of them is not
    empty = Batch(ragged.logits + HIGH, torch.full_like(ragged.targets, IGNORE), ragged.mask)
    return {
        "ragged": ragged,
        "full": full,
        "empty": empty,
        "confident": ragged.with_logits(ragged.logits * (500 / ragged.logits.abs().max())),
        "shift": ragged.with_logits(ragged.logits + SHIFT),
        "nan": ragged.with_logits(_spoiled(ragged, float("nan"), at_target=True)),
        "posinf": ragged.with_logits(_spoiled(ragged, float("inf"), at_target=False)),
        "long": long.with_logits(LONG * long.logits),
    }


def measure(subject, seed: int, device: torch.device) -> dict:
    loss_fn = function(subject, "loss_fn(logits, targets, mask) -> Tensor")
    train = function(subject, "train(steps, device) -> list[dict[str, float]]")
    evidence = {"known.thousand": torch.nn.functional.cross_entropy(torch.tensor([[1e3, -1e3]]), torch.tensor([1]))}
    for name, batch in inputs(seed).items():
        for dtype in _dtypes_of(name):
            # of the long batch the loss is enough: its backward would cost seconds where each position has a graph
            found = _loss_and_gradient(loss_fn, batch, dtype, device, backward=name != "long")
            evidence |= {f"{dtype}.{name}.{key}": value for key, value in found.items()}
    return evidence | _history(train, seed, device) | _poisoned(train, seed, device)


def _dtypes_of(name: str) -> list[str]:
    """The dtypes in which a batch is measured."""
    if name == "long":
        return ["float16"]
    return list(DTYPES) if name in ("ragged", "full", "empty", "confident") else ["float32"]


def _draw(g: torch.Generator, lengths: list[int], positions: int = 6, vocabulary: int = 23) -> Batch:
    shape = (len(lengths), positions, vocabulary)
    logits = 2 * torch.randn(shape, generator=g)
    mask = torch.rand(shape, generator=g) < 0.4
    targets = torch.randint(vocabulary, shape[:2], generator=g)
    mask.scatter_(-1, targets.unsqueeze(-1), True)
    mask[..., 0], mask[..., 1] = True, True  # at least one allowed token that is not the target
    targets[0, 0] = IGNORE  # a prompt position: allowed tokens, nothing to predict
    after_end = torch.arange(positions) >= torch.tensor(lengths).unsqueeze(1)
    targets[after_end], mask[after_end] = IGNORE, False
    return Batch(logits, targets, mask)


def _spoiled(batch: Batch, value: float, at_target: bool) -> Tensor:
    """The logits with `value` at one allowed token of a position that counts."""
    logits, target = batch.logits.clone(), int(batch.targets[0, 1])
    logits[0, 1, target if at_target else int(target == 0)] = value
    return logits


def _loss_and_gradient(loss_fn, batch: Batch, dtype: str, device: torch.device, backward: bool) -> dict:
    """Loss, whether there is a graph, and with `backward` the gradient; or the type of an exception, and nan."""
    logits = batch.logits.to(device, DTYPES[dtype]).requires_grad_()
    try:
        loss = loss_fn(logits, batch.targets.to(device), batch.mask.to(device))
        fits = isinstance(loss, Tensor) and loss.ndim == 0 and loss.is_floating_point()
        expect(fits, "loss_fn", wanted="a floating 0-d tensor", got=describe(loss))
        gradient = {"grad": _gradient(loss, logits)} if backward else {}
    except Contract:
        raise
    except Exception as error:  # of any type: the check that needs this batch names it
        gradient = {"grad": torch.full_like(logits, float("nan"))} if backward else {}
        return {"raised": type(error).__name__, "loss": float("nan"), "has_grad_fn": False} | gradient
    return {"raised": "", "loss": loss.float(), "has_grad_fn": loss.requires_grad} | gradient


def _gradient(loss: Tensor, logits: Tensor) -> Tensor:
    """The gradient of the logits; zeros where the loss does not depend on them."""
    found = torch.autograd.grad(loss, logits, allow_unused=True)[0] if loss.requires_grad else None
    return torch.zeros_like(logits) if found is None else found


def _history(train, seed: int, device: torch.device) -> dict:
    torch.manual_seed(seed)
    with _model_calls() as tokens:
        history = _columns(train(STEPS, device))
    bad = int((~np.isfinite(history[:, 0])).sum())
    sums = np.array([int(t.sum()) for _, t in tokens], dtype=np.int64)
    return {
        "history.loss": history[:, 0],
        "history.grad_norm": history[:, 1],
        "history.bad_steps": bad,
        "history.token_sums": sums,
    }


def _poisoned(train, seed: int, device: torch.device) -> dict:
    """The losses of a run in which a weight becomes nan at one step; a run that raises then is as loud as can be."""
    torch.manual_seed(seed)
    try:
        with _model_calls(poisoned_at=POISONED_AT):
            return {"poisoned.loss": _columns(train(STEPS, device))[:, 0], "poisoned.raised": ""}
    except LOUD as error:
        return {"poisoned.loss": np.zeros(0), "poisoned.raised": type(error).__name__}


def _columns(history) -> np.ndarray:
    """[steps, 2] of loss and gradient norm."""
    keys = ("loss", "grad_norm")
    fits = isinstance(history, list) and all(isinstance(h, dict) and set(keys) <= h.keys() for h in history)
    expect(fits, "train", wanted='a list of {"loss": float, "grad_norm": float}', got=describe(history))
    return np.array([[float(h[k]) for k in keys] for h in history], dtype=np.float64).reshape(-1, 2)


@contextmanager
def _model_calls(poisoned_at: int | None = None):
    """Collects (model, tokens) of every call of the model; before one of them its first parameter may become nan."""
    calls = []

    def before_forward(module, arguments):
        if calls and module is not calls[0][0]:  # the first module that is called is the model
            return
        if len(calls) == poisoned_at:
            next(module.parameters()).data.fill_(float("nan"))
        calls.append((module, arguments[0] if arguments else torch.zeros(0)))

    handle = register_module_forward_pre_hook(before_forward)
    try:
        yield calls
    finally:
        handle.remove()
