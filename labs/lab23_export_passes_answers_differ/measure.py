"""Measure lab23: export, carry the artifact to a process without torch, and put the same requests to both sides.

The export always runs on the CPU. On a CUDA device PyTorch answers on the card, and onnxruntime does where it has the
provider for it (not run on a GPU yet).
"""

import inspect
import json
import math
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from breakfix.contract import Contract, describe, expect, function
from breakfix.probes.parity import first_divergence

VOCABULARY, WIDTH, CATEGORIES = 200, 16, 12
SHAPES = {
    "embed.weight": (VOCABULARY, WIDTH),
    "positions.direction": (WIDTH,),
    "encode.weight": (WIDTH, WIDTH),
    "encode.bias": (WIDTH,),
    "salience.weight": (1, WIDTH),
    "salience.bias": (1,),
    "classify.weight": (CATEGORIES, WIDTH),
    "classify.bias": (CATEGORIES,),
}
OUTPUTS = ("categories", "salience", "thumbnail")
LENGTHS = (1, 3, 6, 8, 9, 20)
PHOTOS = ((16, 16), (32, 24), (15, 13), (33, 47))
BATCHES = (2, 1, 3, 5)  # of the columns; 2 titles of 6 tokens with photos of 16 x 16 are the starter's own example
LONGEST, LARGEST = 40, 48
TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # |got - want| / (1 + |want|): right ones reach 1e-6 on a CPU, wrong ones 0.1
OPSET = 18  # the least that production's model.onnx may have
FREE = {"tokens": (0, 1), "photo": (0, 2, 3)}  # the axes of model.onnx's inputs that must be free
WRONG = 1e-3  # |served - eager| / (1 + |eager|) from which on the summary calls an answer wrong; no check uses it
PRODUCTION = Path(__file__).with_name("production.py")
SECONDS = 120  # for production to answer; the bounds of the lab are tighter


@dataclass(frozen=True)
class Request:
    """tokens [B, T] int64 and photo [B, 3, H, W] float32 in 0..1."""

    tokens: np.ndarray
    photo: np.ndarray

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    @property
    def odd(self) -> bool:
        return any(side % 2 for side in self.photo.shape[2:])


@dataclass(frozen=True)
class Given:
    """What the seed decides: the weights, the requests by name, and those that have to be refused."""

    weights: dict[str, np.ndarray]
    requests: dict[str, Request]
    bad: dict[str, Request]  # each has one token that is not in the vocabulary


def inputs(seed: int) -> Given:
    """A grid of lengths and photo sizes, six further requests whose sizes are drawn too, and four bad ones."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(0, 0.7, shape).astype(np.float32) for name, shape in SHAPES.items()}
    grid = [(batch, length, photo) for length in LENGTHS for batch, photo in zip(BATCHES, PHOTOS, strict=True)]
    drawn = [(rng.integers(1, 8), rng.integers(low, high + 1), PHOTOS[0]) for low, high in _DRAWN_LENGTHS]
    odd, free = 2 * rng.integers(2, LARGEST // 2, 2) + 1, rng.integers(4, LARGEST + 1, 2)
    drawn += [(2, 6, tuple(odd)), (3, 5, tuple(free))]
    requests = [_draw(rng, int(b), int(t), int(h), int(w)) for b, t, (h, w) in grid + drawn]
    return Given(weights, {_name(request): request for request in requests}, _bad(rng))


_DRAWN_LENGTHS = ((10, 19), (21, LONGEST), (1, LONGEST), (1, LONGEST))


def measure(subject, seed: int, device: torch.device) -> dict:
    given = inputs(seed)
    model = _model(subject, given.weights)
    with TemporaryDirectory() as folder:
        artifact, told = _export(subject, model, Path(folder))
        eager = {name: _eager(model.to(device), request, device) for name, request in given.requests.items()}
        first = _first(model.cpu(), artifact / "model.onnx", given.requests)
        served, report = _serve(subject, artifact, given, device, Path(folder))
    evidence = _keyed("eager", eager) | _keyed("served", served) | told | first
    evidence |= {f"file.{key}": report[key] for key in ("opset", "axes", "checker")}
    evidence |= {f"production.{key}": report[key] for key in ("provider", "torch", "errors")}
    return evidence | _summary(given, eager, served, told, report)


def _draw(rng: np.random.Generator, batch: int, length: int, height: int, width: int) -> Request:
    tokens = rng.integers(VOCABULARY, size=(batch, length))
    return Request(tokens, rng.random((batch, 3, height, width), dtype=np.float32))


def _bad(rng: np.random.Generator) -> dict[str, Request]:
    """Below the vocabulary and above it: the nearest id, and one farther off."""
    ids = (-1, -int(rng.integers(2, VOCABULARY + 1)), VOCABULARY, VOCABULARY + int(rng.integers(1, 100)))
    requests = {f"token {token}": _draw(rng, 2, 6, *PHOTOS[0]) for token in ids}
    for token, request in zip(ids, requests.values(), strict=True):
        request.tokens[rng.integers(2), rng.integers(6)] = token
    return requests


def _name(request: Request) -> str:
    """As in 2x9 15x13: two titles of 9 tokens, photos of 15 x 13."""
    (batch, length), (height, width) = request.tokens.shape, request.photo.shape[2:]
    return f"{batch}x{length} {height}x{width}"


# ------------------------------------------------------------------------------------------------------- in PyTorch


def _model(subject, weights: dict[str, np.ndarray]) -> nn.Module:
    """The subject's model with our weights; it may hold more (a table, say), but not less and not in another shape."""
    model = function(subject, "build_model() -> nn.Module")()
    expect(isinstance(model, nn.Module), "build_model", wanted="an nn.Module", got=describe(model))
    state = {name: torch.from_numpy(value) for name, value in weights.items()}
    has = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    lacks = [f"{name} {list(shape)}" for name, shape in SHAPES.items() if has.get(name) != shape]
    expect(not lacks, "build_model", wanted=f"a model with {', '.join(lacks)} in its state_dict", got=describe(model))
    model.load_state_dict(state, strict=False)
    return model.eval()


def _eager(model: nn.Module, request: Request, device: torch.device) -> dict[str, np.ndarray]:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with torch.no_grad():
        outputs = model(torch.from_numpy(request.tokens).to(device), torch.from_numpy(request.photo).to(device))
    fits = isinstance(outputs, tuple | list) and len(outputs) == 3 and all(isinstance(o, Tensor) for o in outputs)
    expect(fits, "the model", wanted="categories, salience and thumbnail, three tensors", got=describe(outputs))
    return {name: value.cpu().numpy() for name, value in zip(OUTPUTS, outputs, strict=True)}


def _export(subject, model: nn.Module, folder: Path) -> tuple[Path, dict]:
    """The artifact, moved away from where it was made, and what the exporter said."""
    made, artifact = folder / "made", folder / "shipped"
    made.mkdir()
    export = function(subject, "export(model, path) -> None")
    with _listening() as told:
        export(model, made)
    files = sorted(path.name for path in made.iterdir())
    if "model.onnx" not in files:
        raise Contract(f"export must write path/model.onnx; it wrote {', '.join(files) or 'nothing'}")
    shutil.move(made, artifact)
    for path in [*artifact.rglob("*"), artifact]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return artifact, told | {"file.names": files, "file.bytes": sum(path.stat().st_size for path in artifact.iterdir())}


@contextmanager
def _listening() -> Iterator[dict]:
    """What torch.onnx.export told its caller: warnings, and the ranges in the program that it returned. Only shown."""
    told = {"told.warnings": 0, "told.ranges": []}
    real = torch.onnx.export

    def export(*arguments, **options):
        program = real(*arguments, **options)
        found = getattr(getattr(program, "exported_program", None), "range_constraints", {})
        told["told.ranges"] += [[int(r.lower), int(r.upper) if r.upper < 2**31 else -1] for r in found.values()]
        return program

    torch.onnx.export = export
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", UserWarning)
            yield told
    finally:
        torch.onnx.export = real
    told["told.warnings"] = len([w for w in heard if issubclass(w.category, UserWarning)])


def _first(model: nn.Module, path: Path, requests: dict[str, Request]) -> dict:
    """The first layer that differs, for a long title and for an odd photo. Only shown: what fails is said instead."""
    wanted = {"first.long_title": (9, PHOTOS[0]), "first.odd_photo": (6, PHOTOS[2])}
    found = {}
    for key, (length, photo) in wanted.items():
        request = next(r for r in requests.values() if r.length == length and r.photo.shape[2:] == photo)
        try:
            named = {"tokens": torch.from_numpy(request.tokens), "photo": torch.from_numpy(request.photo)}
            found[key] = str(first_divergence(model, path, named) or "none")
        except Exception as error:
            found[key] = f"not found: {type(error).__name__}"
    return found


# ---------------------------------------------------------------------------------------------------- in production


def _serve(subject, artifact: Path, given: Given, device: torch.device, folder: Path) -> tuple[dict, dict]:
    """The answers of a fresh process without torch, by request and output, and its report."""
    requests = {**given.requests, **given.bad}
    arrays = {
        f"{name}/{part}": getattr(request, part) for name, request in requests.items() for part in ("tokens", "photo")
    }
    np.savez(folder / "requests.npz", **arrays)
    command = [artifact, folder / "requests.npz", folder / "answers.npz", device.type, *_shipped(subject, folder)]
    done = subprocess.run(
        [sys.executable, "-P", PRODUCTION, *command], capture_output=True, text=True, cwd=folder, timeout=SECONDS
    )
    sys.stderr.write(done.stderr[-4000:])
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise Contract(f"production, which has no torch, could not open the artifact: {last}")
    with np.load(folder / "answers.npz") as answers:
        report = json.loads(str(answers["report"]))
        served: dict[str, dict[str, np.ndarray]] = {name: {} for name in requests}
        for key in answers.files:
            name, _, output = key.partition("/")
            served.get(name, {})[output] = answers[key]
    return served, report


def _shipped(subject, folder: Path) -> list[Path]:
    """The file that holds the source of the subject's serve function, if it has one."""
    serve = getattr(subject, "serve", None)
    if serve is None:
        return []
    if not inspect.isfunction(serve):
        raise Contract(f"serve must be a function of its own, with source; it is {describe(serve)}")
    path = folder / "serve.py"
    path.write_text("from __future__ import annotations\n\n" + inspect.getsource(serve), "utf-8")
    return [path]


# ------------------------------------------------------------------------------------------------------- what to show


def _keyed(side: str, answers: dict[str, dict[str, np.ndarray]]) -> dict:
    return {
        f"{side}.{name}.{output}": array
        for name, outputs in answers.items()
        for output, array in outputs.items()
        if output in OUTPUTS
    }


def apart(got: np.ndarray | None, want: np.ndarray) -> float:
    """The largest |got - want| / (1 + |want|); inf where there is no answer, or one of another shape or dtype."""
    if got is None or got.shape != want.shape or got.dtype != want.dtype:
        return math.inf
    return float((np.abs(got - want) / (1 + np.abs(want))).max())


def _summary(given: Given, eager: dict, served: dict, told: dict, report: dict) -> dict:
    """The difference at every point of the grid (nan where nothing came), and in words what the predictions ask."""
    cells = [[_name_of(given, length, photo) for photo in PHOTOS] for length in LENGTHS]
    worst = [[np.max([apart(served[c].get(o), eager[c][o]) for o in OUTPUTS]) for c in row] for row in cells]
    grid = np.array([[value if math.isfinite(value) else math.nan for value in row] for row in worst])
    wrong = ~(grid <= WRONG)
    titles = [length for length, row in zip(LENGTHS, wrong, strict=True) if row[0]]
    photos = [photo for photo, column in zip(PHOTOS, wrong[LENGTHS.index(6)], strict=True) if column]
    return {
        "difference": grid,
        "digits": -np.log10(np.clip(grid, 1e-7, 1.0)),  # float32 has seven
        "wrong.shortest_title": titles[0] if titles else "none",
        "wrong.photos": _PATTERNS.get(tuple(photos), "others"),
        "wrong.negative_token": "raises too" if "token -1" in report["errors"] else "answers",
        "wrong.known_to": _known_to(told, report),
    }


_PATTERNS = {(): "none", PHOTOS: "all", PHOTOS[2:]: "those with an odd side", (PHOTOS[1], PHOTOS[3]): "the larger ones"}


def _name_of(given: Given, length: int, photo: tuple[int, int]) -> str:
    return next(n for n, r in given.requests.items() if r.length == length and r.photo.shape[2:] == photo)


def _known_to(told: dict, report: dict) -> str:
    """Which of the things at hand before the first request shows that some sizes are out of range."""
    if any(upper >= 0 for _, upper in told["told.ranges"]):
        return "the range constraints of the exported program"
    if report["checker"] != "passed":
        return "onnx.checker"
    return "a warning of the exporter" if told["told.warnings"] else "none of them"
