"""TODO: measure your own failure, in two regimes at least. Probabilities of leaves alone and in a batch."""

import torch
from torch import Tensor, nn

from breakfix.contract import describe, expect, function

LEAVES, LENGTHS, SPECIES = 32, 4, 3
SCALES = {"moderate": 1.0, "huge": 200.0}  # of the logits: each regime alone would let a wrong fix pass
BATCHES = (1, 2, 8, 32)


def inputs(seed: int) -> dict[str, Tensor]:
    """TODO: everything secret that `seed` draws; the checks draw the same. Leaves [32, 4] and a weight [3, 4]."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "leaves": torch.randn(LEAVES, LENGTHS, generator=generator),
        "weight": torch.randn(SPECIES, LENGTHS, generator=generator),
    }


def measure(subject, seed: int, device: torch.device) -> dict:
    """TODO: run the subject on inputs(seed); numbers and arrays, 4 MiB at most, under dotted names."""
    predict = function(subject, "predict(model, x) -> Tensor")
    given = inputs(seed)
    leaves = given["leaves"].to(device)
    evidence = {}
    for regime, scale in SCALES.items():
        model = _model(given["weight"] * scale).to(device)
        alone = [_probabilities(predict, model, leaves[i : i + 1]) for i in range(LEAVES)]
        evidence |= {
            f"{regime}.together": _probabilities(predict, model, leaves),
            f"{regime}.alone": torch.cat(alone),
            f"{regime}.still_training": model.training,
        }
    model = _model(given["weight"]).to(device)
    highest = torch.stack([_probabilities(predict, model, leaves[:n])[0].max() for n in BATCHES])
    has_graph = predict(model, leaves).requires_grad
    return evidence | {"highest": highest, "alone.highest": highest[0], "has_graph": has_graph}


def _model(weight: Tensor) -> nn.Module:
    """A linear classifier with dropout, in training mode."""
    linear = nn.Linear(LENGTHS, SPECIES, bias=False)
    linear.weight = nn.Parameter(weight)
    return nn.Sequential(nn.Dropout(0.5), linear)


def _probabilities(predict, model: nn.Module, leaves: Tensor) -> Tensor:
    """What the subject answers, if it is of the shape that the contract says."""
    answer = predict(model, leaves)
    fits = isinstance(answer, Tensor) and answer.shape == (len(leaves), SPECIES)
    expect(fits, "predict", wanted=f"a tensor [{len(leaves)}, {SPECIES}]", got=describe(answer))
    return answer.detach()
