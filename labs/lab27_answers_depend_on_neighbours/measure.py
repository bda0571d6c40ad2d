"""Measure lab27: quantize a known model, carry its file elsewhere, and score the same payments in many batches."""

import copy
import io
import linecache
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import torch
from torch import Tensor, nn

from breakfix.contract import describe, expect, expect_tensors, function
from breakfix.probes.parity import relative_error

FEATURES, WIDTH, KINDS = 48, 256, 8
TRAINED_ON, HELD_OUT, BATCH = 1024, 512, 32
SAMPLE = 512  # payments in a sample of production
FACTORS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e6)  # how much larger the outlier is than an ordinary payment
SAMPLES = ("as it is", "clean")
NOT_FINITE = ("nan", "inf", "-inf")
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-4}  # by a neighbour: right ones reach 3e-7 on a CPU, wrong ones 7e-3


def reference() -> nn.Sequential:
    """The reference architecture: payments [B, 48] to scores [B, 8]."""
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, KINDS)
    )


@dataclass(frozen=True)
class Inputs:
    """Trained weights, samples of production by name, payments to score, and what becomes of one of them."""

    weights: dict[str, Tensor]
    samples: dict[str, Tensor]  # "as it is" has a few faulty payments, "clean" has none
    held_out: Tensor  # [512, 48] that nobody has seen
    kinds: Tensor  # [512], what they are
    batch: Tensor  # [32, 48]
    places: list[int]  # of the outlier in the batch
    sign: Tensor  # [48] of the outlier's features
    corners: Tensor  # [3, 48]: nothing but zeros, very small numbers, one single number


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    typical, spread = torch.randn(KINDS, FEATURES, generator=g), 0.3 + 0.6 * torch.rand(FEATURES, generator=g)
    unit = _unit(seed)

    def payments(count: int) -> tuple[Tensor, Tensor]:
        kinds = torch.randint(KINDS, (count,), generator=g)
        return (typical[kinds] + 1.3 * torch.randn(count, FEATURES, generator=g)) * spread, kinds

    weights = _trained(*payments(TRAINED_ON), g)
    weights["0.weight"] /= unit
    clean, (held_out, kinds) = unit * payments(SAMPLE)[0], payments(HELD_OUT)
    held_out = unit * held_out
    faulty = clean.clone()
    bad = torch.randperm(SAMPLE, generator=g)[:4].tolist()
    faulty[bad[0]] *= 300 + 400 * torch.rand((), generator=g)
    faulty[bad[1]] *= -1000
    faulty[bad[2], _between(0, FEATURES - 1, g)] = math.nan
    faulty[bad[3], _between(0, FEATURES - 1, g)] = math.inf
    places = [0, _between(1, BATCH - 2, g), BATCH - 1]
    corners = torch.stack([torch.zeros(FEATURES), 1e-6 * held_out[0], torch.zeros(FEATURES)])
    corners[2, _between(0, FEATURES - 1, g)] = 2.0 * unit
    sign = 2.0 * torch.randint(2, (FEATURES,), generator=g) - 1
    samples = dict(zip(SAMPLES, (faulty, clean), strict=True))
    return Inputs(weights, samples, held_out, kinds, unit * payments(BATCH)[0], places, sign, corners)


def _unit(seed: int) -> float:
    """An ordinary payment in the model's unit, much below one: so no range or step fits that was not measured."""
    return 10 ** -(2 + torch.rand((), generator=torch.Generator().manual_seed(seed + 27)).item())


def _between(low: int, high: int, g: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (), generator=g))


def _trained(rows: Tensor, kinds: Tensor, g: torch.Generator) -> dict[str, Tensor]:
    """Two random layers and a last one that is fitted in closed form: a model that is right, in milliseconds."""
    model = reference().double()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=g) * math.sqrt(2 / layer.in_features))
            layer.bias.copy_(0.1 * torch.randn(layer.bias.shape, generator=g))
        hidden = model[:4](rows.double())
        hidden = torch.cat([hidden, torch.ones(len(rows), 1)], dim=1)
        wanted = 4 * nn.functional.one_hot(kinds, KINDS).double() - 1
        ridge = hidden.T @ hidden + 20 * torch.eye(WIDTH + 1)
        fitted = torch.linalg.solve(ridge, hidden.T @ wanted)
        model[4].weight.copy_(fitted[:-1].T), model[4].bias.copy_(fitted[-1])
    return {name: value.float() for name, value in model.state_dict().items()}


SHAPES = {name: tuple(value.shape) for name, value in reference().state_dict().items()}


# ---------------------------------------------------------------------------------------------------------- the subject


@dataclass(frozen=True)
class Bench:
    """The subject's functions, and where its models score."""

    subject: ModuleType
    quantize: Callable
    save: Callable
    given: Inputs
    device: torch.device

    def float_model(self) -> nn.Module:
        model = function(self.subject, "build_model() -> nn.Module")()
        expect(isinstance(model, nn.Module), "build_model", wanted="an nn.Module", got=describe(model))
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        expect_tensors(shapes, SHAPES, "build_model", wanted="a model whose state_dict has today's names and shapes")
        model.load_state_dict(self.given.weights)
        return model.eval()

    def shipped(self, sample: Tensor) -> tuple[nn.Module, int, bool]:
        """The model as another process loads it, the bytes of its files, and whether the float model is as it was."""
        model = self.float_model()
        before = copy.deepcopy(model.state_dict())
        with TemporaryDirectory() as folder:
            made, there = Path(folder, "made"), Path(folder, "there")
            made.mkdir()
            self.save(self.quantize(model, sample.clone()), made)
            shutil.move(made, there)
            size = sum(path.stat().st_size for path in there.rglob("*") if path.is_file())
            loaded = function(_afresh(self.subject), "load(path) -> nn.Module")(there)
        expect(isinstance(loaded, nn.Module), "load", wanted="an nn.Module", got=describe(loaded))
        return loaded.to(self.device), size, _same(before, model.state_dict())

    @torch.no_grad()
    def scores(self, model: nn.Module, rows: Tensor) -> Tensor:
        made = model(rows.clone().to(self.device))
        fits = isinstance(made, Tensor) and made.shape == (len(rows), KINDS) and made.is_floating_point()
        expect(fits, "the loaded model", wanted=f"scores [{len(rows)}, {KINDS}], floating", got=describe(made))
        return made.float().cpu()


def _afresh(subject: ModuleType) -> ModuleType:
    """The subject's file once more, as a process that has only the model's files would run it."""
    fresh = ModuleType(subject.__name__)
    fresh.__file__ = subject.__file__
    exec(compile("".join(linecache.getlines(subject.__file__)), subject.__file__, "exec"), fresh.__dict__)
    return fresh


def _same(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


# -------------------------------------------------------------------------------------------------------- what is asked


def measure(subject, seed: int, device: torch.device) -> dict:
    quantize = function(subject, "quantize(model, calibration) -> nn.Module")
    save = function(subject, "save(model, path) -> None")
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = False
    bench = Bench(subject, quantize, save, inputs(seed), device)
    evidence = {"bytes.float": _bytes(bench.given.weights)}
    for name, sample in bench.given.samples.items():
        model, size, untouched = bench.shipped(sample)
        evidence |= _held_out(bench, model, name) | {f"{name}.bytes": size, f"{name}.untouched": untouched}
        if name == "as it is":
            evidence |= _neighbours(bench, model) | _not_finite(bench, model)
    return evidence | _without_a_sample(bench) | {"bytes.ratio": evidence["as it is.bytes"] / evidence["bytes.float"]}


def _bytes(state: dict[str, Tensor]) -> int:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.tell()


def _held_out(bench: Bench, model: nn.Module, name: str) -> dict:
    """Scores of payments that nobody has seen, in batches; and of payments at the corners, each alone."""
    corners = [bench.scores(model, row[None]) for row in bench.given.corners]
    scores = [bench.scores(model, rows) for rows in bench.given.held_out.split(128)]
    return {f"{name}.held_out": torch.cat(scores), f"{name}.corners": torch.cat(corners)}


def _neighbours(bench: Bench, model: nn.Module) -> dict:
    """The scores of a batch: each payment alone, all together, in another order, and beside an outlier."""
    batch, found = bench.given.batch, {}
    found["alone"] = torch.cat([bench.scores(model, row[None]) for row in batch])
    found["together"] = bench.scores(model, batch)
    found["reversed"] = bench.scores(model, batch.flip(0)).flip(0)
    found["halves"] = torch.cat([bench.scores(model, half) for half in batch.split(BATCH // 2)])
    worst = []
    for factor in FACTORS:
        moved = 0.0
        for place in bench.given.places:
            rows = batch.clone()
            rows[place] = factor * bench.given.sign * rows[place].abs()
            scores = found[f"beside {factor:g} at {place}"] = bench.scores(model, rows)
            others = [i for i in range(BATCH) if i != place]
            moved = max(moved, relative_error(scores[others], found["alone"][others]))
        worst.append(moved)
    return found | {
        "moved": torch.tensor(worst, dtype=torch.float64),
        "moved.drawn": torch.tensor(worst, dtype=torch.float64).clamp(min=1e-8),  # a log axis has no zero
        "moved.1000": worst[FACTORS.index(1e3)],
        "outlier.changes": "its neighbours' too" if worst[FACTORS.index(1e3)] > 1e-3 else "its own alone",
    }


def _not_finite(bench: Bench, model: nn.Module) -> dict:
    """The scores of a batch in which one number is not finite; nan for all where the model refuses the batch."""
    found, place = {}, bench.given.places[1]
    for number in NOT_FINITE:
        rows = bench.given.batch.clone()
        rows[place, FEATURES // 2] = float(number)
        scores, raised = torch.full((BATCH, KINDS), float("nan")), ""
        try:
            scores = bench.scores(model, rows)
        except (RuntimeError, ValueError) as error:
            raised = type(error).__name__
        found |= {f"beside {number}": scores, f"beside {number}.raised": raised}
    return found | {"nan.scores": int(found["beside nan"][place].isnan().sum())}


def _without_a_sample(bench: Bench) -> dict:
    """What quantize does without a single payment to calibrate on: it may refuse."""
    try:
        model, _, _ = bench.shipped(torch.empty(0, FEATURES))
    except Exception as error:  # whatever it is, it is not silence
        return {"empty.raised": type(error).__name__, "empty.held_out": torch.zeros(0, KINDS)}
    return {"empty.raised": "", "empty.held_out": bench.scores(model, bench.given.held_out)}
