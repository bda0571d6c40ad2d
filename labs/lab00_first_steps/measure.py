"""Measure lab00: train the same model on one, two and eighty batches and keep its weights and losses."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from breakfix.contract import describe, expect, function

READINGS, LR = 8, 0.02
RUNS = {"one": 1, "two": 2, "eighty": 80}


@dataclass(frozen=True)
class Inputs:
    """The model's first weight [1, 8] and bias [1], and eighty batches of readings [32, 8] and load [32, 1]."""

    weight: Tensor
    bias: Tensor
    batches: list[tuple[Tensor, Tensor]]


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    influence = 1 + torch.rand(READINGS, 1, generator=g)
    batches = []
    for _ in range(max(RUNS.values())):
        readings = torch.randn(32, READINGS, generator=g)
        batches.append((readings, readings @ influence + 0.1 * torch.randn(32, 1, generator=g)))
    return Inputs(torch.zeros(1, READINGS), torch.zeros(1), batches)


def measure(subject, seed: int, device: torch.device) -> dict:
    train = function(subject, "train(model, batches, lr) -> list[float]")
    given, evidence = inputs(seed), {}
    for name, count in RUNS.items():
        evidence |= _run(train, given, count, name, device)
    return evidence | _for_predictions(given, evidence)


def _run(train, given: Inputs, count: int, name: str, device: torch.device) -> dict:
    model = nn.Linear(READINGS, 1).to(device)
    with torch.no_grad():
        model.weight.copy_(given.weight), model.bias.copy_(given.bias)
    losses = train(model, [(x.to(device), y.to(device)) for x, y in given.batches[:count]], LR)
    fits = isinstance(losses, list) and len(losses) == count and all(isinstance(v, float) for v in losses)
    expect(fits, "train", wanted=f"a list of {count} floats", got=describe(losses))
    return {f"{name}.weight": model.weight, f"{name}.bias": model.bias, f"{name}.loss": np.array(losses)}


def _for_predictions(given: Inputs, evidence: dict) -> dict:
    moved = {name: (evidence[f"{name}.weight"].detach().cpu() - given.weight).norm() for name in ("one", "two")}
    losses = evidence["eighty.loss"]
    return {
        "two.distance_ratio": float(moved["two"] / (2 * moved["one"])),  # two right steps are about twice the first
        "eighty.late_loss_ratio": float(losses[-10:].max() / losses[0]),
    }
