"""Measure lab08: loss and gradient on batches of several kinds and dtypes, then two training runs, one poisoned."""

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from breakfix.contract import describe, expect, function

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
IGNORE, STEPS, POISONED_AT = -100, 40, 20
SHIFT = -3e4
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
    empty = Batch(ragged.logits, torch.full_like(ragged.targets, IGNORE), ragged.mask)
    return {
        "ragged": ragged,
        "full": full,
        "empty": empty,
        "confident": ragged.with_logits(ragged.logits * (500 / ragged.logits.abs().max())),
        "shift": ragged.with_logits(ragged.logits + SHIFT),
        "nan": ragged.with_logits(_spoiled(ragged, float("nan"), at_target=True)),
        "posinf": ragged.with_logits(_spoiled(ragged, float("inf"), at_target=False)),
    }


def measure(subject, seed: int, device: torch.device) -> dict:
    loss_fn = function(subject, "loss_fn(logits, targets, mask) -> Tensor")
    train = function(subject, "train(steps, device) -> list[dict[str, float]]")
    evidence = {"known.thousand": torch.nn.functional.cross_entropy(torch.tensor([[1e3, -1e3]]), torch.tensor([1]))}
    for name, batch in inputs(seed).items():
        for dtype in DTYPES if name in ("ragged", "full", "empty", "confident") else ["float32"]:
            evidence |= _loss_and_gradient(loss_fn, batch, dtype, f"{dtype}.{name}", device)
    return evidence | _history(train, seed, device) | _poisoned(train, seed, device)


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


def _loss_and_gradient(loss_fn, batch: Batch, dtype: str, key: str, device: torch.device) -> dict:
    logits = batch.logits.to(device, DTYPES[dtype]).requires_grad_()
    try:
        loss = loss_fn(logits, batch.targets.to(device), batch.mask.to(device))
    except LOUD:
        if torch.isfinite(batch.logits).all():
            raise
        return {f"{key}.loss": float("nan")}  # to refuse a logit that is nan is as loud as to return nan
    fits = isinstance(loss, Tensor) and loss.ndim == 0 and loss.is_floating_point()
    expect(fits, "loss_fn", wanted="a floating 0-d tensor", got=describe(loss))
    gradient = torch.zeros_like(logits)
    if loss.requires_grad:
        (found,) = torch.autograd.grad(loss, logits, allow_unused=True)
        gradient = gradient if found is None else found
    return {f"{key}.loss": loss.float(), f"{key}.has_grad_fn": loss.requires_grad, f"{key}.grad": gradient}


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
