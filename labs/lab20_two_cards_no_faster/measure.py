"""Runs a subject's `wrap` and `train_step` on two and on four ranks, with every collective written down."""

import hashlib
import math
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.optim import Optimizer

from breakfix.contract import describe, expect, function
from breakfix.probes import traffic
from breakfix.ranks import run_ranks

FEATURES, WIDTH, DEPTH, CLASSES = 64, 168, 10, 16
SETTLED = 2  # DDP rebuilds its buckets in the first steps: what is judged comes after them
PER_TENSOR = 80  # parameters of each tensor that leave the process, at secret places
LARGE, SMALL = 1e7, 1e-8  # what the gradients of Wide are multiplied by


@dataclass(frozen=True)
class Regime:
    """How many ranks there are, and how many micro-batches each of them has in how many steps."""

    world: int
    micro_batches: int
    steps: int = SETTLED + 1
    ragged: bool = False  # sizes differ between micro-batches and between ranks
    adam: bool = False  # else SGD: Adam hides a wrong scale, SGD that weights are averaged in place of gradients

    def optimizer(self, parameters: Iterable[Tensor]) -> Optimizer:
        if self.adam:
            return torch.optim.Adam(parameters, lr=1e-3, eps=1e-3)  # at 1e-8 it would blow up rounding errors
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


REGIMES = {
    "two": Regime(world=2, micro_batches=4, steps=SETTLED + 2, adam=True),  # two: who skips every other step is seen
    "two.ragged": Regime(world=2, micro_batches=3, ragged=True),
    "two.single": Regime(world=2, micro_batches=1),
    "four": Regime(world=4, micro_batches=2, ragged=True),
}

Batch = tuple[Tensor, Tensor]
Step = list[Batch]  # the micro-batches of one rank


@dataclass(frozen=True)
class Inputs:
    """All that is secret: initial weights, batches, and which parameters are looked at."""

    weights: list[Tensor]
    places: list[Tensor]  # per tensor, indices into its flattened values
    batches: dict[str, list[list[Step]]]  # per regime: [rank][step]
    wide: dict[int, list[Batch]]  # per world: one batch for each rank


def inputs(seed: int) -> Inputs:
    """Everything secret, drawn from `seed`."""
    draw = torch.Generator().manual_seed(seed)
    weights = [_weights(shape, draw) for shape in shapes()]
    places = [torch.randint(w.numel(), (PER_TENSOR,), generator=draw) for w in weights]
    batches = {name: _batches(regime, draw) for name, regime in REGIMES.items()}
    wide = {world: [_batch(4, draw) for _ in range(world)] for world in (2, 4)}
    return Inputs(weights, places, batches, wide)


def shapes() -> list[tuple[int, ...]]:
    """Shapes of the parameters of Tower, in order."""
    block = [(WIDTH,), (WIDTH,), (WIDTH, WIDTH), (WIDTH,)]
    return [(WIDTH, FEATURES), (WIDTH,), *block * DEPTH, (CLASSES, WIDTH), (CLASSES,)]


TENSORS = len(shapes())
GRADIENT_BYTES = 4 * sum(math.prod(shape) for shape in shapes())


def _weights(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    values = torch.randn(shape, generator=draw)
    return values / math.sqrt(shape[1]) if len(shape) == 2 else 0.5 + 0.1 * values


def _batches(regime: Regime, draw: torch.Generator) -> list[list[Step]]:
    sizes = torch.full((regime.world, regime.steps, regime.micro_batches), 2)
    if regime.ragged:
        sizes = torch.randint(1, 5, sizes.shape, generator=draw)
        sizes[0, :, -1] = 8  # so that no two ways of averaging agree by chance
    return [[[_batch(int(n), draw) for n in step] for step in rank] for rank in sizes]


def _batch(samples: int, draw: torch.Generator) -> Batch:
    return torch.randn(samples, FEATURES, generator=draw), torch.randint(CLASSES, (samples,), generator=draw)


# ---------------------------------------------------------------------------------------------------------- the models


class Held:
    """One forward, alive for as long as a backward needs something that it saved."""


class Samples:
    """The samples that went through a Tower of this rank, and how many at once had activations waiting for backward."""

    def __init__(self):
        self.forwarded = self.most_held = 0
        self.waiting: weakref.WeakKeyDictionary[Held, int] = weakref.WeakKeyDictionary()

    def forward(self, samples: int) -> saved_tensors_hooks:
        """To be entered for one forward."""
        held = Held()
        self.waiting[held] = samples
        self.forwarded += samples
        self.most_held = max(self.most_held, sum(self.waiting.values()))
        return saved_tensors_hooks(lambda tensor: (held, tensor), lambda saved: saved[1])


_samples = Samples()


class Tower(nn.Module):
    """A residual tower: 1.2 MB of parameters in 44 tensors, each of them used in every forward."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        with _samples.forward(len(inputs)):
            hidden = self.stem(inputs)
            for block in self.blocks:
                hidden = hidden + F.gelu(block(hidden)) / DEPTH
            return self.head(hidden)


class Wide(nn.Module):
    """A classifier with one gradient near 1e6 and one near 1e-9: float16 holds neither, bfloat16 holds both."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(FEATURES, CLASSES)
        self.large = nn.Parameter(torch.zeros(CLASSES))
        self.small = nn.Parameter(torch.zeros(CLASSES))
        nn.init.zeros_(self.base.weight), nn.init.zeros_(self.base.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        large, small = (p - p.detach() for p in (self.large, self.small))  # zero, whatever the parameter is
        return self.base(inputs) + LARGE * large + SMALL * small


# ----------------------------------------------------------------------------------------------------------- measuring


def measure(subject: ModuleType, seed: int, device: torch.device) -> dict[str, Any]:
    """Per regime: collectives, losses and samples of each step, sampled weights, what the Flight Recorder saw."""
    wrap = function(subject, "wrap(model, group) -> Module")
    train_step = function(subject, "train_step(module, optimizer, micro_batches, group) -> float")
    given = inputs(seed)
    evidence: dict[str, Any] = {"gradient_megabytes": GRADIENT_BYTES / 1e6}
    for world in (2, 4):
        log = traffic.count(_backends(device, world))

        def work(rank: int, world: int, log=log) -> dict[str, Any]:
            here = Rank(wrap, train_step, given, rank, _device_of(rank, world, device), log)
            names = [name for name, regime in REGIMES.items() if regime.world == world]
            return {k: v for name in names for k, v in here.regime(name).items()} | here.wide(world)

        ranks = run_ranks(work, world, backend=traffic.BACKEND, timeout_s=20)
        evidence |= {key: _together([rank[key] for rank in ranks]) for key in ranks[0]}
    return _summary(evidence) | evidence


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
    """One rank: runs the subject's functions and keeps what it saw."""

    wrap: Callable
    train_step: Callable
    given: Inputs
    rank: int
    device: torch.device
    log: list[traffic.Collective]

    def regime(self, name: str) -> dict[str, Any]:
        start = len(self.log)
        with traffic.recording() as recorded:
            module = self.wrapped(_with(Tower(), self.given.weights))
            optimizer = REGIMES[name].optimizer(module.parameters())
            steps = [self.step(module, optimizer, batches) for batches in self.given.batches[name][self.rank]]
        counted = self.log[start:]
        found = {
            "collectives": [[[c.op, c.bytes, c.dtype] for c in step["collectives"]] for step in steps[SETTLED:]],
            "losses": [step["loss"] for step in steps],
            "samples": [step["samples"] for step in steps],
            "held": [step["held"] for step in steps],
            "seconds": min(step["seconds"] for step in steps[SETTLED:]),
            "disagreement": traffic.disagreement(counted, recorded),
            "sent": self.sent(counted, recorded),
            **_weights_of(module, self.given.places),
        }
        return {f"{name}.{key}": value for key, value in found.items()}

    def step(self, module: nn.Module, optimizer: Optimizer, batches: Step) -> dict[str, Any]:
        batches = [(x.to(self.device), y.to(self.device)) for x, y in batches]
        start, forwarded, started = len(self.log), _samples.forwarded, time.perf_counter()
        _samples.most_held = 0
        loss = self.train_step(module, optimizer, batches, dist.group.WORLD)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        expect(isinstance(loss, float), "train_step", wanted="a float", got=describe(loss))
        samples, held = _samples.forwarded - forwarded, _samples.most_held
        return {"collectives": self.log[start:], "loss": loss, "samples": samples, "held": held, "seconds": seconds}

    def wide(self, world: int) -> dict[str, Any]:
        """The weights of Wide after one step of SGD with learning rate 1: minus the gradient that was applied."""
        model = Wide()
        start = len(self.log)
        with traffic.recording() as recorded:
            module = self.wrapped(model)
            batches = [self.given.wide[world][self.rank]]
            self.step(module, torch.optim.SGD(module.parameters(), lr=1.0), batches)
        large, small, *_ = _in_order(module)
        name = f"wide.{world}"
        return {
            f"{name}.large": large,
            f"{name}.small": small,
            f"{name}.sent": self.sent(self.log[start:], recorded),
        }

    def wrapped(self, model: nn.Module) -> nn.Module:
        wanted = [tuple(p.shape) for p in model.parameters()]
        module = self.wrap(model.to(self.device), dist.group.WORLD)
        expect(isinstance(module, nn.Module), "wrap", wanted="a module", got=describe(module))
        got = [tuple(p.shape) for p in module.parameters()]
        expect(got == wanted, "wrap", wanted="a module with the model's parameters, in their order", got=f"{got}"[:200])
        whole = not any(hasattr(p, "full_tensor") for p in module.parameters())
        expect(whole, "wrap", wanted="a module whose parameters are whole on each rank", got="sharded ones")
        return module

    def sent(self, counted: list[traffic.Collective], recorded: list[traffic.Collective]) -> float:
        """Bytes that this rank should have put on the wire: the recorder's, and the sends that it leaves out."""
        sends = [c for c in counted if c.op in traffic.POINT_TO_POINT]
        own = [c for c in recorded if c.op not in traffic.POINT_TO_POINT]
        return sum(traffic.sent_bytes(c, dist.get_world_size()) for c in (*own, *sends))


def _with(model: nn.Module, weights: list[Tensor]) -> nn.Module:
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), weights, strict=True):
            parameter.copy_(values)
    return model


def _in_order(module: nn.Module) -> list[np.ndarray]:
    return [p.detach().float().cpu().numpy() for p in module.parameters()]


def _weights_of(module: nn.Module, places: list[Tensor]) -> dict[str, Any]:
    values = _in_order(module)
    digest = hashlib.blake2b(digest_size=8)
    for value in values:
        digest.update(np.ascontiguousarray(value))
    looked_at = [value.ravel()[where.numpy()] for value, where in zip(values, places, strict=True)]
    return {"weights": np.stack(looked_at), "digest": digest.hexdigest()}


def _together(values: list[Any]) -> Any:
    return np.stack(values) if isinstance(values[0], np.ndarray) else values


def _summary(evidence: dict[str, Any]) -> dict[str, Any]:
    """For people, for the figure and for the predictions: what one step after the settling ones comes to."""
    summary: dict[str, Any] = {"wire_bytes": sum(sum(v) for k, v in evidence.items() if k.endswith(".sent"))}
    for name, regime in REGIMES.items():
        step = [traffic.Collective(*c) for c in evidence[f"{name}.collectives"][0][-1]]
        summary |= {
            f"{name}.collectives_per_step": len(step),
            f"{name}.megabytes_per_step": sum(c.bytes for c in step) / 1e6,
            f"{name}.gradients_per_step": sum(c.bytes for c in step) / GRADIENT_BYTES,
            f"{name}.modelled_ms": {
                link.name: 1e3 * traffic.modelled_seconds(step, regime.world, link) for link in traffic.LINKS
            },
        }
    return summary
