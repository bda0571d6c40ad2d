"""Measure lab24: export, carry the programs to a process that has none of the subject's code, and compare answers.

The export always runs on the CPU. On a CUDA device model and programs answer on the card (not run on a GPU yet).
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

CHANNELS, WIDTH, WORDS, FAULTS = 6, 16, 50, 6
TURNING = 0.5
SHAPES = {
    "encode.weight": (WIDTH, CHANNELS),
    "encode.bias": (WIDTH,),
    "words.weight": (WORDS, WIDTH),
    "heads.0.weight": (FAULTS, WIDTH),
    "heads.0.bias": (FAULTS,),
    "heads.1.0.weight": (WIDTH, WIDTH),
    "heads.1.0.bias": (WIDTH,),
    "heads.1.2.weight": (FAULTS, WIDTH),
    "heads.1.2.bias": (FAULTS,),
}
EXAMPLE = 8  # readings in the starter's own example, of a pump that stands still
LENGTHS = (1, 2, EXAMPLE, 9, 40)
NOTES = (5, 1, 2, 12, 20)  # words, one note per length
LONGEST = 300
TENS = 5  # further recordings of EXAMPLE readings without a note: so many of running pumps, so many of stopped ones
TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # |got - want| / (1 + |want|): right ones reach 2e-6 on a CPU
WRONG = 1e-3  # from which difference on the summary calls an answer wrong; no check uses it
PRODUCTION = Path(__file__).with_name("production.py")
SECONDS = 120  # for production to answer; the bounds of the lab are tighter


@dataclass(frozen=True)
class Recording:
    """readings [T, CHANNELS] float32, the first channel is the speed; text [L] int64 or None."""

    readings: np.ndarray
    text: np.ndarray | None = None

    @property
    def running(self) -> bool:
        return bool(self.readings[:, 0].mean() > TURNING)

    @property
    def length(self) -> int:
        return len(self.readings)

    @property
    def batch(self) -> dict[str, np.ndarray]:
        return {"readings": self.readings} | ({} if self.text is None else {"text": self.text})


@dataclass(frozen=True)
class Given:
    """What the seed decides: weights, recordings by name, broken sensors, and what has to be refused."""

    weights: dict[str, np.ndarray]
    requests: dict[str, Recording]
    broken: dict[str, Recording]  # one reading is nan
    bad: dict[str, dict[str, np.ndarray]]


def inputs(seed: int) -> Given:
    """Running and stopped pumps of several lengths, each with and without a note; then some of drawn lengths."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(0, 0.7, shape).astype(np.float32) for name, shape in SHAPES.items()}
    requests = {}
    for running in (False, True):
        for length, words in zip(LENGTHS, NOTES, strict=True):
            readings, text = _readings(rng, running, length), rng.integers(WORDS, size=words)
            requests[name_of(running, length)] = Recording(readings)
            requests[name_of(running, length, note=True)] = Recording(readings, text)
        for i in range(TENS):
            requests[f"{name_of(running, EXAMPLE)} again {i}"] = Recording(_readings(rng, running, EXAMPLE))
            length, words = int(rng.integers(3, LONGEST)), int(rng.integers(1, 30))
            text = rng.integers(WORDS, size=words) if i % 2 else None
            requests[f"{name_of(running, length, bool(i % 2))} drawn {i}"] = Recording(
                _readings(rng, running, length), text
            )
    for running in (False, True):
        requests[f"{name_of(running, EXAMPLE)} uneven"] = Recording(_uneven(rng, running))
    requests["stopped, at the limit"] = Recording(_at_the_limit(rng))
    return Given(weights, requests, _broken(rng), _bad(rng))


def name_of(running: bool, length: int, note: bool = False) -> str:
    return f"{'running' if running else 'stopped'} {length}{' with a note' if note else ''}"


def _readings(rng: np.random.Generator, running: bool, length: int) -> np.ndarray:
    """A stopped pump has the speed 0 in two of three recordings, and turns a little in the others."""
    readings = rng.normal(0, 1, (length, CHANNELS))
    slow = rng.uniform(0.1, 0.3) * (rng.random() < 1 / 3)
    readings[:, 0] = rng.uniform(1.0, 3.0, length) if running else slow
    return readings.astype(np.float32)


def _uneven(rng: np.random.Generator, running: bool) -> np.ndarray:
    """The first, the last and the median speed are on the other side of TURNING than the mean."""
    readings = _readings(rng, running, EXAMPLE)
    readings[:, 0] = 0.0 if running else rng.uniform(0.55, 0.7)
    readings[2:5, 0] = rng.uniform(3.0, 5.0) if running else 0.0
    return readings


def _at_the_limit(rng: np.random.Generator) -> np.ndarray:
    """The mean speed is TURNING, without rounding, and that is not above it."""
    readings = _readings(rng, False, EXAMPLE)
    readings[:, 0] = TURNING
    return readings


def _broken(rng: np.random.Generator) -> dict[str, Recording]:
    found = {}
    for running in (False, True):
        readings = _readings(rng, running, EXAMPLE)
        readings[rng.integers(EXAMPLE), rng.integers(1, CHANNELS)] = np.nan
        found[f"broken sensor, {name_of(running, EXAMPLE)}"] = Recording(readings)
    return found


def _bad(rng: np.random.Generator) -> dict[str, dict[str, np.ndarray]]:
    """A recording that lacks a channel, one that lacks the readings, and notes with a word that nobody knows."""
    readings = _readings(rng, False, EXAMPLE)
    words = (-1, WORDS, WORDS + int(rng.integers(1, 100)))
    return {"bad: a channel is missing": {"readings": readings[:, :-1]}, "bad: no readings": {"text": np.arange(3)}} | {
        f"bad: word {word}": {"readings": readings, "text": np.array([3, word])} for word in words
    }


def measure(subject, seed: int, device: torch.device) -> dict:
    given = inputs(seed)
    model = _model(subject, given.weights)
    with TemporaryDirectory() as folder:
        artifact, told = _export(subject, model, Path(folder))
        served, report = _production(subject, artifact, given, device, Path(folder))
    model.to(device).eval()
    eager = {name: _eager(model, recording, device) for name, recording in given.requests.items()}
    evidence = {f"eager.{name}": answer for name, answer in eager.items()} | told
    evidence |= {f"served.{name}": answer for name, answer in served.items()}
    evidence |= {"refused": report["errors"], "programs": report["programs"]}
    return evidence | _summary(eager, served, report)


# ------------------------------------------------------------------------------------------------------- in PyTorch


def _model(subject, weights: dict[str, np.ndarray]) -> nn.Module:
    """The subject's model with our weights, as training leaves it: in training mode."""
    model = function(subject, "build_model() -> nn.Module")()
    expect(isinstance(model, nn.Module), "build_model", wanted="an nn.Module", got=describe(model))
    has = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    lacks = [f"{name} {list(shape)}" for name, shape in SHAPES.items() if has.get(name) != shape]
    expect(not lacks, "build_model", wanted=f"a model with {', '.join(lacks)} in its state_dict", got=describe(model))
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, strict=False)
    return model.train()


@torch.no_grad()
def _eager(model: nn.Module, recording: Recording, device: torch.device) -> np.ndarray:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    answer = model({part: torch.from_numpy(value).to(device) for part, value in recording.batch.items()})
    expect(isinstance(answer, Tensor), "the model", wanted=f"scores [{FAULTS}]", got=describe(answer))
    return answer.cpu().numpy()


def _export(subject, model: nn.Module, folder: Path) -> tuple[Path, dict]:
    """The artifact, moved away from where it was made, and the lines of the subject that the tracer warned of."""
    made, artifact = folder / "made", folder / "shipped"
    made.mkdir()
    export = function(subject, "export(model, folder) -> None")
    with _listening() as told:
        export(model, made)
    files = sorted(path.name for path in made.iterdir())
    if not any(name.endswith((".pt2", ".pt")) for name in files):
        raise Contract(f"export must write a program, NAME.pt2 or NAME.pt; it wrote {', '.join(files) or 'nothing'}")
    shutil.move(made, artifact)
    for path in [*artifact.rglob("*"), artifact]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return artifact, told | {"file.bytes": sum(path.stat().st_size for path in artifact.iterdir())}


@contextmanager
def _listening() -> Iterator[dict]:
    """How many lines the tracer warned of, and how many warnings of deprecation came. Only shown."""
    told: dict = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield told
    traced = {(w.filename, w.lineno) for w in caught if issubclass(w.category, torch.jit.TracerWarning)}
    told |= {"told.lines": len(traced), "told.deprecated": sum(w.category is FutureWarning for w in caught)}


# ---------------------------------------------------------------------------------------------------- in production


def _production(subject, artifact: Path, given: Given, device: torch.device, folder: Path) -> tuple[dict, dict]:
    """The answers by recording, from a fresh process in which the subject is not, and its report."""
    batches = {name: recording.batch for name, recording in (given.requests | given.broken).items()} | given.bad
    arrays = {f"{name}/{part}": value for name, batch in batches.items() for part, value in batch.items()}
    np.savez(folder / "requests.npz", **arrays)
    command = [artifact, folder / "requests.npz", folder / "answers.npz", device.type, *_shipped(subject, folder)]
    done = subprocess.run(
        [sys.executable, "-P", PRODUCTION, *command], capture_output=True, text=True, cwd=folder, timeout=SECONDS
    )
    sys.stderr.write(done.stderr[-4000:])
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise Contract(f"production, which has none of your code, could not open the artifact: {last}")
    with np.load(folder / "answers.npz") as answers:
        report = json.loads(str(answers["report"]))
        return {name: answers[name] for name in answers.files if name in batches}, report


def _shipped(subject, folder: Path) -> list[Path]:
    """The file that holds the source of the subject's route function, if it has one."""
    route = getattr(subject, "route", None)
    if route is None:
        return []
    if not inspect.isfunction(route):
        raise Contract(f"route must be a function of its own, with source; it is {describe(route)}")
    path = folder / "route.py"
    path.write_text("from __future__ import annotations\n\n" + inspect.getsource(route), "utf-8")
    return [path]


# ------------------------------------------------------------------------------------------------------- what to show


def apart(got: np.ndarray | None, want: np.ndarray) -> float:
    """The largest |got - want| / (1 + |want|); inf where there is no answer, or one of another shape or dtype."""
    if got is None or got.shape != want.shape or got.dtype != want.dtype:
        return math.inf
    return float((np.abs(got - want) / (1 + np.abs(want))).max())


def _summary(eager: dict, served: dict, report: dict) -> dict:
    """How far served and eager are apart by kind of recording and length, and what the predictions ask."""
    differ = {name: apart(served.get(name), want) for name, want in eager.items()}
    kinds = [(running, note) for running in (False, True) for note in (False, True)]
    grid = np.array([[differ[name_of(running, n, note)] for n in LENGTHS] for running, note in kinds])
    ten = [differ[f"{name_of(running, EXAMPLE)} again {i}"] for running in (False, True) for i in range(TENS)]
    return {
        "difference": np.where(np.isfinite(grid), grid, math.nan),
        "digits": -np.log10(np.clip(np.where(np.isfinite(grid), grid, math.nan), 1e-7, 1.0)),  # float32 has seven
        "wrong.of_ten": sum(not value <= WRONG for value in ten),
        "note.effect": _effect_of_a_note(served, report),
    }


def _effect_of_a_note(served: dict, report: dict) -> str:
    """What became of the note on a recording that was also sent without one."""
    without, noted = name_of(False, EXAMPLE), name_of(False, EXAMPLE, note=True)
    if noted in report["errors"]:
        return "it raises"
    same = without in served and np.array_equal(served[noted], served[without])
    return "it answers as if there were no note" if same else "it reads the note"
