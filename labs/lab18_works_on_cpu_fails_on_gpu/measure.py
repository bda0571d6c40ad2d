"""Measure lab18: values on the device at hand, and steps on a card that is real or, on a CPU, fake."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from breakfix.contract import Contract, describe, expect, function
from breakfix.probes.placement import Crossings, FakeCard, RealCard, left_behind, reached

SENSORS, WIDTH, HEADS, DEPTH, LONGEST, HOURS, BATCH = 6, 32, 4, 2, 128, 6, 8
STEPS = {"two days": 48, "five days": 120}  # readings in a batch
RATE, UPDATES = 0.05, 3
PAIRS = {"norm": [WIDTH], "attend": [3 * WIDTH, WIDTH], "mix": [WIDTH, WIDTH]}
PAIRS |= {"feed.0": [WIDTH], "feed.1": [64, WIDTH], "feed.3": [WIDTH, 64]}  # a weight, and a bias for its first axis


def _named(pairs: dict[str, list[int]]) -> dict[str, list[int]]:
    return {f"{layer}.{kind}": shape[:n] for layer, shape in pairs.items() for kind, n in (("weight", 2), ("bias", 1))}


BLOCK, ENDS = _named(PAIRS), _named({"enter": [WIDTH, SENSORS], "leave": [HOURS, WIDTH]})
LEARNED = ENDS | {f"blocks.{i}.{name}": shape for i in range(DEPTH) for name, shape in BLOCK.items()}
NUMBERS = sum(math.prod(shape) for shape in LEARNED.values())  # that the model learns
IN_A_FILE = NUMBERS + 2 * SENSORS  # and the statistics


@dataclass(frozen=True)
class Inputs:
    """Last month's file as a flat dict of float32 by name, its statistics, another turbine's, and batches by length."""

    learned: dict[str, Tensor]
    statistics: dict[str, np.ndarray]
    other: dict[str, np.ndarray]
    batches: dict[str, tuple[Tensor, Tensor]]

    @property
    def file(self) -> dict:
        """Last month's file, as its `save` made it."""
        blocks = [{name: self.learned[f"blocks.{i}.{name}"].clone() for name in BLOCK} for i in range(DEPTH)]
        ends = {name: self.learned[name].clone() for name in ENDS}
        return {"model": ends, "blocks": blocks} | {n: torch.tensor(v) for n, v in self.statistics.items()}


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    learned = {name: _weights(name, shape, g) for name, shape in LEARNED.items()}
    statistics, other = _statistics(g), _statistics(g)
    batches = {}
    for name, steps in STEPS.items():
        scale, shift = (torch.tensor(statistics[n]).float() for n in ("std", "mean"))
        readings = shift + scale * torch.randn(BATCH, steps, SENSORS, generator=g)
        batches[name] = readings, torch.randn(BATCH, HOURS, generator=g)
    return Inputs(learned, statistics, other, batches)


def _weights(name: str, shape: list[int], g: torch.Generator) -> Tensor:
    if len(shape) == 2:
        return torch.randn(shape, generator=g) / shape[1] ** 0.5
    return 0.2 * torch.randn(shape, generator=g) + name.endswith(("norm.weight", "feed.0.weight"))


def _statistics(g: torch.Generator) -> dict[str, np.ndarray]:
    mean, spread = 40 + 40 * torch.rand(SENSORS, generator=g), 5 + 10 * torch.rand(SENSORS, generator=g)
    return {"mean": mean.double().numpy(), "std": spread.double().numpy()}


def measure(subject, seed: int, device: torch.device) -> dict:
    functions = (
        function(subject, "build(statistics) -> nn.Module"),
        function(subject, "loss_fn(forecast, truth) -> Tensor"),
        function(subject, "load(model, file) -> None"),
    )
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = False
    bench = Bench(*functions, inputs(seed), device)
    evidence = _file(bench) | _trained(bench) | _half(bench) | _known()
    for name in STEPS:
        evidence |= {f"{name}.{key}": value for key, value in _step(bench, name).items()}
    for name, run in REGIMES.items():
        evidence |= {f"{name}.{key}": value for key, value in _on_card(bench, run).items()}
    return evidence | _seen(bench, evidence)


@dataclass(frozen=True)
class Bench:
    """The subject's functions, what they are tried on, and the device of the values."""

    build: Callable
    loss_fn: Callable
    load: Callable
    given: Inputs
    device: torch.device

    def model(self, statistics: dict | None = None) -> nn.Module:
        """A new model, on the CPU."""
        torch.manual_seed(0)  # what no file sets is the same each time
        model = self.build(copy.deepcopy(statistics or self.given.statistics))
        expect(isinstance(model, nn.Module), "build", wanted="an nn.Module", got=describe(model))
        return model

    def loaded(self) -> nn.Module:
        """Another turbine's, with last month's file; without, where it does not load, which another check says."""
        model = self.model(self.given.other)
        with trouble():
            self.load(model, self.given.file)
        return model

    def batch(self, name: str, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        return tuple(t.to(device or self.device) for t in self.given.batches[name])

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        forecast = model(batch[0])
        fits = isinstance(forecast, Tensor) and forecast.shape == batch[1].shape
        expect(fits, "the model", wanted=f"a forecast [B, {HOURS}]", got=describe(forecast))
        loss = self.loss_fn(forecast, batch[1])
        fits = isinstance(loss, Tensor) and loss.ndim == 0
        expect(fits, "loss_fn", wanted="a 0-d tensor", got=describe(loss))
        return forecast, loss


@contextmanager
def trouble(told: dict | None = None, key: str = "raised") -> Iterator[None]:
    """Go on after an exception of any type; what it was goes into `told`. A breach of the contract goes through."""
    try:
        yield
    except Contract:
        raise
    except Exception as error:
        if told is not None:
            told[key] = f"{type(error).__name__}: {error}".partition("\n")[0][:160]


def _file(bench: Bench) -> dict:
    """Whether last month's file loads, and whether the state_dict of today is all that another model needs."""
    found = {"file.raised": "", "again.raised": "", "again.equal": False, "file.numbers": math.nan}
    with trouble(found, "file.raised"):
        model = bench.model(bench.given.other)
        bench.load(model, bench.given.file)
    if found["file.raised"]:
        return found
    state = copy.deepcopy(model.state_dict())
    found["file.numbers"] = sum(t.numel() for _, t in reached(state))
    with trouble(found, "again.raised"), torch.no_grad():
        other = bench.model(bench.given.other)  # whose own statistics are not those of the file
        other.load_state_dict(state)
        readings = bench.given.batches["two days"][0]
        found["again.equal"] = torch.equal(model(readings), other(readings))
    return found


def _step(bench: Bench, name: str) -> dict:
    """Forecast, loss and gradients of a batch in float32, on the device, and what was made in float64 meanwhile."""
    found = {"raised": "", "forecast": torch.full((BATCH, HOURS), math.nan), "loss": math.nan, "float64": math.nan}
    model = bench.loaded()
    known = _parameters(bench, model)
    with Crossings() as log, trouble(found):
        model.to(bench.device)
        forecast, loss = bench.loss(model, bench.batch(name))
        loss.backward()
        found |= {"forecast": forecast.detach().float(), "loss": loss.item(), "float64": len(log.of("float64"))}
    found["missing"] = sorted(LEARNED.keys() - known.keys())
    found["extra"] = sum(p.numel() for n, p in known.items() if n not in LEARNED)
    gradients = [_gradient(known.get(n), shape) for n, shape in LEARNED.items()]
    return found | {"gradient": torch.cat(gradients)}


def _parameters(bench: Bench, model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by the names of the reference, told by their values; the rest as `extra 0` and so on."""
    names = {value.numpy().tobytes(): name for name, value in bench.given.learned.items()}
    parameters = [p for p in model.parameters() if p.requires_grad]
    return {names.get(p.detach().numpy().tobytes(), f"extra {i}"): p for i, p in enumerate(parameters)}


def _gradient(parameter: Tensor | None, shape: list[int]) -> Tensor:
    if parameter is None or parameter.grad is None:
        return torch.full((math.prod(shape),), math.nan)
    return parameter.grad.detach().float().cpu().flatten()


def _trained(bench: Bench) -> dict:
    """The forecast after a few plain gradient steps of all that `parameters()` gives."""
    found = {"trained.forecast": torch.full((BATCH, HOURS), math.nan), "trained.raised": ""}
    with trouble(found, "trained.raised"):
        model, batch = bench.loaded().to(bench.device), bench.batch("two days")
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for _ in range(UPDATES):
            optimizer.zero_grad()
            bench.loss(model, batch)[1].backward()
            optimizer.step()
        found["trained.forecast"] = model(batch[0]).detach().float()
    return found


def _half(bench: Bench) -> dict:
    """The whole model in bfloat16, as the nightly run has it."""
    found = {"half.forecast": torch.full((BATCH, HOURS), math.nan), "half.dtype": "none", "half.raised": ""}
    with trouble(found, "half.raised"):
        forecast, loss = bench.loss(bench.loaded().to(bench.device, torch.bfloat16), bench.batch("two days"))
        loss.backward()
        found |= {"half.forecast": forecast.detach().float(), "half.dtype": str(forecast.dtype)}
    return found


def _known() -> dict:
    """What a matrix product of two devices says on meta, and on a card."""
    found = {"known.meta": "returns a tensor", "known.card": "returns a tensor"}
    with trouble(found, "known.meta"):
        torch.ones(2, 2, device="meta") @ torch.ones(2, 2)
    with FakeCard() as card, trouble(found, "known.card"):
        torch.ones(2, 2, device=card.device) @ torch.ones(2, 2)
    return {name: what.partition(":")[0] for name, what in found.items()}


# ---------------------------------------------------------------------------------------------------------- on the card


def _train(bench: Bench, card, dtype: torch.dtype = torch.float32) -> None:
    """Two steps; what the second does between devices counts, as the first may have something to set up."""
    model = card.copy(bench.loaded()).to(card.device, dtype)
    batch = card.copy(bench.batch("two days", "cpu"))
    batch = tuple(t.to(card.device) for t in batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(2):
        card.events.clear()
        optimizer.zero_grad()
        bench.loss(model, batch)[1].backward()
        optimizer.step()


def _train_in_bfloat16(bench: Bench, card) -> None:
    _train(bench, card, torch.bfloat16)


def _move_about(bench: Bench, card) -> None:
    """From card to card, where there are two, and back to the CPU, with another length in between.

    What the last of two forwards does between devices counts.
    """
    model = card.copy(bench.loaded())
    for device, name in ((card.device, "two days"), (card.second, "five days"), ("cpu", "two days")):
        model.to(device)
        batch = tuple(t.to(device) for t in card.copy(bench.batch(name, "cpu")))
        with torch.no_grad():
            bench.loss(model, batch)
            card.events.clear()
            bench.loss(model, batch)


def _load_there(bench: Bench, card) -> None:
    """Last month's file, read into a model that is on the card already."""
    model = card.copy(bench.model()).to(card.device)
    bench.load(model, card.copy(bench.given.file))
    batch = tuple(t.to(card.device) for t in card.copy(bench.batch("five days", "cpu")))
    bench.loss(model, batch)[1].backward()
    card.events.clear()
    bench.loss(model, batch)[1].backward()


REGIMES = {
    "training": _train,
    "bfloat16": _train_in_bfloat16,
    "moved about": _move_about,
    "loaded there": _load_there,
}


def _on_card(bench: Bench, run: Callable) -> dict:
    card = RealCard() if bench.device.type == "cuda" else FakeCard()
    two = bench.device.type == "cpu" or torch.cuda.device_count() > 1
    card.second = torch.device("cuda:1" if two else "cpu")
    found = {"raised": "", "copied": math.nan, "read": math.nan}
    with trouble(found), card:
        run(bench, card)
        found |= {"copied": card.bytes("copied"), "read": card.bytes("read")}
    return found | {"crossings": card.report().splitlines()[:8]}


def _seen(bench: Bench, evidence: dict) -> dict:
    """How much of what the model needs who sees; shown, not graded."""
    model, strays = bench.loaded(), left_behind(bench.loaded())
    needed = sum(t.numel() for _, t in reached(model))
    seen = [needed, needed - sum(s.tensor.numel() for s in strays), sum(p.numel() for p in model.parameters())]
    told = {"left_behind": [str(stray) for stray in strays], "left_behind.count": len(strays)}
    return told | {"seen": np.array([*seen, evidence["file.numbers"]], dtype=np.float64)}
