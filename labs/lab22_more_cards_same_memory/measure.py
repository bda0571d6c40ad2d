"""Runs a subject's Trainer on one, two and four ranks, with every storage and every collective of a rank counted."""

import hashlib
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from breakfix.contract import describe, expect, expect_tensors, function
from breakfix.probes import memory, shards, traffic
from breakfix.ranks import RankFailed, run_ranks

FEATURES, WIDTH, DEPTH, CLASSES = 16, 150, 8, 10  # 150 rows: not to be divided by four
SAMPLES = 8  # per step, of all ranks together
SCALES = (2.0, 20.0, 2.0, 20.0)  # of the inputs, step by step: gradients that are clipped after some that are not
SAVED_BY, SAVED_AFTER = 2, 2  # ranks, steps
LR, MAX_NORM, BETAS, EPS, DECAY = 1e-3, 15.0, (0.9, 0.95), 1e-6, 0.1
PER_TENSOR = 80  # parameters of each tensor that leave the process, at secret places
SIMULATED, WIDE = (8, 64, 1024), 1024  # ranks, and the width of a model that so many can share
KINDS = {"parameters": "parameters", "gradients": "gradients", "state": "optimizer state"}  # evidence key: of a Card
NAMES = {1: "one", 2: "two", 4: "four"}

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Inputs:
    """All that is secret: initial weights, the batch of all ranks in each step, and which parameters are looked at."""

    weights: list[Tensor]
    places: list[Tensor]  # per tensor, indices into its flattened values
    batches: list[Batch]


def inputs(seed: int) -> Inputs:
    """Everything secret, drawn from `seed`."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [tuple(p.shape) for p in Encoder().parameters()]
    weights = [_weights(shape, draw) for shape in shapes]
    places = [torch.randint(math.prod(shape), (PER_TENSOR,), generator=draw) for shape in shapes]
    return Inputs(weights, places, [_batch(scale, draw) for scale in SCALES])


def _weights(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    values = torch.randn(shape, generator=draw)
    return 0.5 * values / math.sqrt(shape[1]) if len(shape) == 2 else 0.5 + 0.1 * values


def _batch(scale: float, draw: torch.Generator) -> Batch:
    features = scale * torch.randn(SAMPLES, FEATURES, generator=draw)
    return features, torch.randint(CLASSES, (SAMPLES,), generator=draw)


class Encoder(nn.Module):
    """The encoder of train.py, 1 MB of it; counts the samples that it forwards."""

    forwarded = 0

    def __init__(self, width: int = WIDTH, depth: int = DEPTH):
        super().__init__()
        self.stem = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(_block(width) for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        Encoder.forwarded += len(inputs)
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)


def _block(width: int) -> nn.Module:
    return nn.Sequential(nn.RMSNorm(width), nn.Linear(width, width, bias=False), nn.GELU())


PARAMETER_BYTES = 4 * sum(p.numel() for p in Encoder().parameters())  # P


# ----------------------------------------------------------------------------------------------------------- measuring


def measure(subject: ModuleType, seed: int, device: torch.device) -> dict[str, Any]:
    """Trained on two ranks, and from what they saved on four and on one; and what one rank of many would keep."""
    trainer = function(subject, "Trainer(model, group, lr, max_norm)")
    given = inputs(seed)
    evidence: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for world in (SAVED_BY, 4, 1):  # the others go on from what the first have saved
            log = traffic.count(_backends(device, world))

            def work(rank: int, world: int, log=log) -> dict[str, Any]:
                here = Rank(trainer, given, rank, world, _device_of(rank, world, device), log, Path(folder))
                return here.run(first=0 if world == SAVED_BY else SAVED_AFTER)

            ranks = run_ranks(work, world, backend=traffic.BACKEND, timeout_s=60)
            evidence |= {key: _together([rank[key] for rank in ranks]) for key in ranks[0]}
    return evidence | _simulations(trainer) | _summary(evidence)


def _backends(device: torch.device, world: int) -> dict[str, str]:
    """NCCL where each rank can have a GPU of its own; it refuses to share one, so there gloo carries CUDA tensors.

    The ranks are forked before this process has used CUDA: the number of GPUs comes from NVML. Not run on a GPU yet.
    """
    if device.type == "cpu":
        return {"cpu": "gloo"}
    return {"cpu": "gloo", "cuda": "nccl" if torch.cuda.device_count() >= world else "gloo"}


def _device_of(rank: int, world: int, device: torch.device) -> torch.device:
    if device.type == "cpu":
        return device
    device = torch.device("cuda", rank if torch.cuda.device_count() >= world else 0)
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    return device


@dataclass
class Rank:
    """One rank: runs the subject's Trainer and keeps what it saw."""

    trainer: Callable
    given: Inputs
    rank: int
    world: int
    device: torch.device
    log: list[traffic.Collective]
    folder: Path

    def run(self, first: int) -> dict[str, Any]:
        """Train from step `first` on, from the checkpoint if that is not 0; what it took and what came out."""
        start, steps = len(self.log), []
        shares = [self.share(batch) for batch in self.given.batches]
        with traffic.recording() as recorded, shards.RankCard(self.device) as card:
            trainer = self.trainer(self.model(card, fresh=first == 0), dist.group.WORLD, LR, MAX_NORM)
            if first:
                trainer.load(self.folder)
            for i in range(first, len(SCALES)):
                steps.append(self.step(trainer, card, *shares[i]))
                if self.world == SAVED_BY and i + 1 == SAVED_AFTER:
                    trainer.save(self.folder)
            held, weights = card.held, self.weights(trainer)
        found = {key: [step[key] for step in steps] for key in steps[0]}
        found |= {
            key: found[key][:SAVED_AFTER] for key in ("peak", "held")
        }  # what save leaves in host memory is not of it
        found["disagreement"] = traffic.disagreement(self.log[start:], recorded)
        found |= {f"held.{key}": held.get(kind, 0) / PARAMETER_BYTES for key, kind in KINDS.items()}
        return {f"{NAMES[self.world]}.{key}": value for key, value in (found | weights).items()}

    def model(self, card: shards.RankCard, fresh: bool) -> nn.Module:
        """The model with the secret weights, or with others for who must load."""
        model = with_weights(Encoder().to(self.device), self.given.weights, factor=1.0 if fresh else -0.5)
        card.add(model)
        return model

    def share(self, batch: Batch) -> Batch:
        return tuple(t.chunk(self.world)[self.rank].to(self.device) for t in batch)

    def step(self, trainer: Any, card: shards.RankCard, x: Tensor, y: Tensor) -> dict[str, Any]:
        start, forwarded, card.peak = len(self.log), Encoder.forwarded, memory.Moment(0, 0, "", "", "")
        result = trainer.step(x, y)
        good = isinstance(result, tuple) and len(result) == 2 and all(isinstance(v, float) for v in result)
        expect(good, "Trainer.step", wanted="a tuple of two floats, loss and norm", got=describe(result))
        card.end_step()
        gathered = [c.bytes * self.world for c in self.log[start:] if c.op == "all_gather"]
        return {
            "loss": result[0],
            "norm": result[1],
            "samples": Encoder.forwarded - forwarded,
            "peak": card.peak.bytes / PARAMETER_BYTES,
            "held": card.in_use / PARAMETER_BYTES,
            "gathered": max(gathered, default=0) / PARAMETER_BYTES,  # at once
            "collectives": len(self.log) - start,
        }

    def weights(self, trainer: Any) -> dict[str, Any]:
        """The parameters at the secret places, and a digest of them all."""
        found = trainer.weights()
        like = {name: f"float32 tensor {list(p.shape)}" for name, p in Encoder().named_parameters()}
        whole = {name: describe(value).partition(" on ")[0] for name, value in dict(found).items()}
        expect_tensors(whole, like, "Trainer.weights", "the model's parameters by name, each a whole float32 tensor")
        values = [found[name].detach().cpu().numpy() for name in like]
        digest = hashlib.blake2b(b"".join(v.tobytes() for v in values), digest_size=8).hexdigest()
        looked_at = [v.ravel()[where.numpy()] for v, where in zip(values, self.given.places, strict=True)]
        return {"weights": np.stack(looked_at), "digest": digest}


def with_weights(model: nn.Module, weights: list[Tensor], factor: float = 1.0) -> nn.Module:
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), weights, strict=True):
            parameter.copy_(factor * values)
    return model


# ---------------------------------------------------------------------------------------------------------- simulating


def _simulations(trainer: Callable) -> dict[str, Any]:
    """What rank 0 of many keeps after a step, in P, where no other rank is there. For show: nan where that fails."""

    def work(rank: int, world: int) -> dict[str, Any]:
        dist.destroy_process_group()
        return {str(many): _simulated(trainer, many) for many in SIMULATED}

    shards.simulate()
    try:
        [found] = run_ranks(work, 1, backend=shards.SIMULATED, timeout_s=10)
    except RankFailed:
        found = {}
    return {f"simulated.{many}": found.get(str(many), math.nan) for many in SIMULATED}


def _simulated(trainer: Callable, world: int) -> float:
    with shards.simulated(world), shards.RankCard("cpu") as card:
        model = Encoder(WIDE, depth=2)
        card.add(model)
        size = sum(p.nbytes for p in model.parameters())
        rank_0 = trainer(model, dist.group.WORLD, LR, MAX_NORM)
        del model
        rank_0.step(torch.ones(1, FEATURES), torch.zeros(1, dtype=torch.int64))
        return card.in_use / size


def _together(values: list[Any]) -> Any:
    return values if isinstance(values[0], str) else np.stack(values)


def _summary(evidence: dict[str, Any]) -> dict[str, Any]:
    """For people, the figure and the predictions: the rank that holds most, in P."""
    summary = {}
    for name in ("two", "four"):
        for key in ("peak", "held", "gathered", "collectives"):
            summary[f"{name}.most.{key}"] = float(evidence[f"{name}.{key}"].max())
        summary |= {f"{name}.most.{key}": float(evidence[f"{name}.held.{key}"].max()) for key in KINDS}
    return summary
