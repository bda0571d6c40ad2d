"""Measure lab15: validate known answers in batches of several sizes, in several orders, epoch after epoch, on ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from breakfix.contract import describe, expect, function
from breakfix.probes import collectives
from breakfix.ranks import run_ranks

TAGS, LENGTH, IGNORE = 4, 6, -100
FIGURES = ("accuracy", "f1", "auroc", "perplexity")
SIZES = (1, 7, 16, 64)  # of batches: 37 sequences leave 2 over, or 5, or all of them in one
SIZES_OF = {"equal batches": (4, 8), "one left": (12,)}  # 32 sequences fill theirs, 37 leave one
EPOCHS = ("good", "poor", "good")
RANKS = {2: ("good", 7), 3: ("between 0 and 1", 1)}  # ranks: answers, and the size of their batches
WAIT_S = 10.0  # never waited for: ranks that part are told at once


@dataclass(frozen=True)
class Answers:
    """Sequences, and what a model says of their tokens."""

    words: Tensor  # [n, LENGTH], each a place in `logits`
    tags: Tensor  # [n, LENGTH], IGNORE after the end
    logits: Tensor  # [n * LENGTH, TAGS] float32

    @property
    def dataset(self) -> TensorDataset:
        return TensorDataset(self.words, self.tags)

    def in_order(self, order: Tensor) -> "Answers":
        return Answers(self.words[order], self.tags[order], self.logits)


def inputs(seed: int) -> dict[str, Answers]:
    """Everything secret, drawn from `seed`, by name."""
    g = torch.Generator().manual_seed(seed)
    good = _drawn(37, g, skill=2.5)
    poor = Answers(good.words, good.tags, 1.5 * torch.randn(good.logits.shape, generator=g))
    last_wrong = _with_logits(good, -3 * torch.nn.functional.one_hot(good.tags[-1].clamp(min=0), TAGS).float(), [36])
    return {
        "good": good,
        "poor": poor,
        "shuffled": good.in_order(torch.randperm(37, generator=g)),
        "sorted": good.in_order(good.tags[:, 0].argsort()),  # batches with few of the tags
        "one left": last_wrong,
        "between 0 and 1": _with_logits(good, torch.rand(12 * LENGTH, TAGS, generator=g), list(range(0, 36, 3))),
        "equal batches": _drawn(32, g, skill=2.5, full=True),
    }


def _drawn(count: int, g: torch.Generator, skill: float, full: bool = False) -> Answers:
    """Sequences of any length, or all of full length, and a model that is right more often than not."""
    tags = torch.randint(TAGS, (count, LENGTH), generator=g)
    tags[:, 0] = torch.arange(count) % TAGS  # each tag occurs, whatever the seed
    logits = torch.randn(count, LENGTH, TAGS, generator=g) * 1.5
    logits += skill * torch.nn.functional.one_hot(tags, TAGS)
    length = torch.randint(1, LENGTH + 1, (count, 1), generator=g)
    if not full:
        tags = tags.masked_fill(torch.arange(LENGTH) >= length, IGNORE)
    return Answers(torch.arange(count * LENGTH).reshape(count, LENGTH), tags, logits.flatten(0, 1))


def _with_logits(answers: Answers, logits: Tensor, sequences: list[int]) -> Answers:
    """The same with other logits for these sequences: as many as they have tokens."""
    changed = answers.logits.clone()
    changed[answers.words[sequences].flatten()] = logits
    return Answers(answers.words, answers.tags, changed)


class Recorded(nn.Module):
    """Gives the answers that it was made with, and keeps how it was called."""

    def __init__(self, answers: Answers):
        super().__init__()
        self.register_buffer("logits", answers.logits)
        self.batches: list[int] = []
        self.seen: list[int] = []
        self.trained = 0  # calls in training mode, or with gradients on

    def forward(self, words: Tensor) -> Tensor:
        fits = words.ndim == 2 and words.shape[1] == LENGTH and not words.is_floating_point()
        expect(fits, "run", wanted="the figures of a model called with words [batch, length]", got=describe(words))
        self.batches.append(len(words))
        self.seen += (words[:, 0] // LENGTH).tolist()
        self.trained += int(self.training or torch.is_grad_enabled())
        return self.logits[words]


# ----------------------------------------------------------------------------------------------------------- measuring


def measure(subject: ModuleType, seed: int, device: torch.device) -> dict[str, Any]:
    """By answers and size of batches, the figures of a fresh Validator; of one that is kept; of two and three ranks."""
    validator = function(subject, "Validator(tags, device) -> Validator")
    given = inputs(seed)
    evidence: dict[str, Any] = {}
    for world, (name, size) in RANKS.items():  # first, as a process that has used CUDA cannot be forked
        evidence |= _on_ranks(validator, given[name], world, size, device)
    for name, answers in given.items():
        found = [run(validator(TAGS, device), answers, size, device) for size in SIZES_OF.get(name, SIZES)]
        evidence |= {f"{name}.{key}": _together([f[key] for f in found]) for key in found[0]}
    return _summary(evidence | _kept(validator, given, device))


def run(validator: Any, answers: Answers, size: int, device: torch.device) -> dict[str, Any]:
    """The figures of these answers, and how the model was called; it comes in training mode."""
    expect(hasattr(validator, "run"), "Validator", wanted="a Validator with a method run", got=describe(validator))
    model = Recorded(answers).to(device)
    found = validator.run(model.train(), answers.dataset, size)
    fits = isinstance(found, dict) and set(found) >= set(FIGURES) and all(isinstance(found[f], float) for f in FIGURES)
    expect(fits, "run", wanted=f"a dict of floats: {', '.join(FIGURES)}", got=f"{found}"[:120])
    return {
        "figures": np.array([found[figure] for figure in FIGURES]),
        "largest batch": max(model.batches, default=0),
        "sequences": len(model.seen),
        "trained": model.trained,
    }


def _together(values: list[Any]) -> Any:
    return np.stack(values) if isinstance(values[0], np.ndarray) else values


def _kept(validator: Callable, given: dict[str, Answers], device: torch.device) -> dict[str, Any]:
    """One Validator over several epochs; beside it a fresh one for each."""
    one = validator(TAGS, device)
    kept = [run(one, given[name], SIZES[1], device)["figures"] for name in EPOCHS]
    fresh = [run(validator(TAGS, device), given[name], SIZES[1], device)["figures"] for name in EPOCHS]
    return {"epochs.kept": np.stack(kept), "epochs.fresh": np.stack(fresh)}


def _on_ranks(validator: Callable, answers: Answers, world: int, size: int, device: torch.device) -> dict[str, Any]:
    """The figures on every rank, and where the ranks parted if they did."""
    trace = collectives.trace(_backends(device, world), wait_s=WAIT_S)

    def work(rank: int, world: int) -> dict[str, Any]:
        here = _device_of(rank, world, device)
        try:
            with trace:
                found = run(validator(TAGS, here), answers, size, here)
        except collectives.RanksPart:
            found = {"figures": np.full(len(FIGURES), np.nan), "largest batch": 0, "sequences": 0, "trained": 0}
        return found | {"parted": str(trace.parted or "")}

    ranks = run_ranks(work, world, backend=collectives.BACKEND, timeout_s=20)
    return {f"{world} ranks.{key}": _together([rank[key] for rank in ranks]) for key in ranks[0]}


def _summary(evidence: dict[str, Any]) -> dict[str, Any]:
    """For people, for the figure and for the predictions."""
    evidence |= {f"good.{figure}": evidence["good.figures"][:, i] for i, figure in enumerate(FIGURES)}
    change = evidence["epochs.kept"][1, 0] - evidence["epochs.kept"][0, 0]
    small, large = evidence["equal batches.figures"]
    return evidence | {
        "epochs.accuracy": "falls" if change < 0 else "rises" if change > 0 else "stays",
        "equal batches.same": int(np.isclose(small, large, rtol=1e-4).sum()),
    }


def _backends(device: torch.device, world: int) -> dict[str, str]:
    """NCCL where each rank can have a GPU of its own; it refuses to share one, so there gloo carries CUDA tensors.

    The ranks are forked before this process has used CUDA. Not run on a GPU yet.
    """
    if device.type == "cpu":
        return {"cpu": "gloo"}
    return {"cpu": "gloo", "cuda": "nccl" if torch.cuda.device_count() >= world else "gloo"}


def _device_of(rank: int, world: int, device: torch.device) -> torch.device:
    if device.type == "cpu":
        return device
    device = torch.device("cuda", rank if torch.cuda.device_count() >= world else 0)
    torch.cuda.set_device(device)
    return device
