"""Measure lab30: stop a run at several batches, go on elsewhere, and look at what lies on the disk at every moment."""

import errno
import linecache
import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import TensorDataset

from breakfix import subject as subjects
from breakfix.contract import PARAMETERS_OF_TODAY, Contract, describe, expect, expect_tensors, function

EPOCHS, BATCH, RATE, KINDS, FEATURES = 6, 16, 1e-2, 5, 12
TRAINING, VALIDATION = 104, 96
PER_EPOCH = -(-TRAINING // BATCH)
TOTAL = EPOCHS * PER_EPOCH
HARDER, EASY = "harder to validate later", 3  # after so many epochs
MOMENTS = 100  # states of the disk that are looked at, of one saving
ROOM = 16 << 10  # bytes that a file may have on a disk that is full


@dataclass(frozen=True)
class Inputs:
    """The parcels, the run's seed, and after how many batches it is stopped, by regime."""

    training: TensorDataset
    validation: TensorDataset
    seed: int
    stops: dict[str, tuple[int, ...]]
    saved_at: tuple[int, int]  # two savings to one file, one after the other
    torn: float  # the share of a checkpoint that is left


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)

    def drawn(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=g))

    places = (1 + torch.randperm(PER_EPOCH - 1, generator=g)).tolist()  # another one in each epoch
    inside = [epoch * PER_EPOCH + place for epoch, place in enumerate(places)]
    stops = {
        "inside an epoch": (inside[drawn(1, 4)],),
        "at an epoch's end": (drawn(1, 5) * PER_EPOCH,),
        "three times": (0, inside[1], inside[3]),
    }
    training, validation = _parcels(TRAINING, g), _parcels(VALIDATION, g)
    return Inputs(
        training, validation, drawn(0, 2**31), stops, (inside[2], inside[2] + 3), 0.2 + 0.6 * drawn(0, 100) / 100
    )


def _parcels(count: int, g: torch.Generator) -> TensorDataset:
    features = torch.randn(count, FEATURES, generator=g)
    return TensorDataset(features, (features[:, :KINDS] + 0.5 * torch.randn(count, KINDS, generator=g)).argmax(dim=1))


def _mislabelled(parcels: TensorDataset) -> TensorDataset:
    """The same parcels, each of the next kind: no model loses as little on them."""
    features, kinds = parcels.tensors
    return TensorDataset(features, (kinds + 1) % KINDS)


def reference() -> nn.Sequential:
    """The model of today, evaluating."""
    layers = (nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2))
    return nn.Sequential(*layers, nn.Linear(64, KINDS)).eval()


def rates() -> list[float]:
    """The learning rate of each batch, as today: up along a cosine for 30 % of the run, then down along another."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=RATE)
    schedule, found = OneCycleLR(optimizer, RATE, total_steps=TOTAL, cycle_momentum=False), []
    for _ in range(TOTAL):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step(), schedule.step()
    return found


def vector(state: dict[str, Tensor]) -> Tensor:
    """All values of a state in one row."""
    return torch.cat([value.detach().cpu().float().flatten() for value in state.values()])


def measure(subject, seed: int, device: torch.device) -> dict:
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = False
    here, elsewhere = Functions.of(subject), Functions.of(_loaded_again(subject))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(here, elsewhere, inputs(seed), device, Path(folder))
        evidence = _uninterrupted(bench)
        evidence |= _run(bench, "saved on the way", bench.given.saved_at, goes_on=True)
        for name, stops in bench.given.stops.items():
            evidence |= _run(bench, name, stops)
        evidence |= _run(bench, HARDER, (EASY * PER_EPOCH,), then=_mislabelled(bench.given.validation))
        evidence |= _savings(bench) | _files(bench)
    return evidence | {"distance": _distance(evidence["inside an epoch.weights"], evidence["uninterrupted.weights"])}


def _loaded_again(subject: ModuleType) -> ModuleType:
    """The same file once more, as another process has it: with nothing of what the first has kept."""
    source = "".join(linecache.getlines(subject.__file__)).encode()
    sys.modules.pop(subject.__name__, None)
    return subjects.load(source, subject.__file__)


def _distance(got: Tensor, want: Tensor) -> float:
    return ((got - want).norm() / want.norm()).item()


@dataclass(frozen=True)
class Functions:
    """The subject's four functions."""

    start: Callable
    train: Callable
    save: Callable
    resume: Callable

    @classmethod
    def of(cls, subject: ModuleType) -> "Functions":
        return cls(
            function(subject, "start(training, validation, seed, device) -> run"),
            function(subject, "train(run, steps) -> list[float]"),
            function(subject, "save(run, path) -> None"),
            function(subject, "resume(path, training, validation, device) -> run"),
        )


@dataclass(frozen=True)
class Bench:
    """The functions of two processes, what they are tried on, and where files go."""

    here: Functions
    elsewhere: Functions
    given: Inputs
    device: torch.device
    folder: Path

    def start(self) -> Any:
        given = self.given
        return _expected(self.here.start(given.training, given.validation, given.seed, self.device), "start")

    def resume(self, path: Path, validation: TensorDataset | None = None) -> Any:
        """The run in `path`, resumed by a process that has drawn other numbers until now."""
        torch.manual_seed(self.given.seed + 1), random.seed(1), np.random.seed(1)
        validation = validation or self.given.validation
        return _expected(self.elsewhere.resume(path, self.given.training, validation, self.device), "resume")

    def place(self) -> Path:
        """A checkpoint's path in a folder of its own."""
        return Path(tempfile.mkdtemp(dir=self.folder), "run.pt")


def _expected(run: Any, name: str) -> Any:
    """The run, if it has what is looked at."""
    model, optimizer, best = (getattr(run, part, None) for part in ("model", "optimizer", "best"))
    fits = isinstance(model, nn.Module) and isinstance(optimizer, torch.optim.Optimizer) and isinstance(best, dict)
    parts = f"model {describe(model)}, optimizer {describe(optimizer)}, best {describe(best)}"
    expect(fits, name, wanted="a run with model, optimizer and best, a dict", got=parts)
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    expect_tensors(shapes, _shapes_of_today(), name, wanted=PARAMETERS_OF_TODAY)
    return run


@cache
def _shapes_of_today() -> dict[str, list[int]]:
    with torch.device("meta"):  # which draws no random numbers: the run's must not be used up here
        return {name: list(value.shape) for name, value in reference().state_dict().items()}


class Seen:
    """What a run's model is given in training, and at which learning rate."""

    def __init__(self, training: TensorDataset) -> None:
        self.features = training.tensors[0]
        self.rows: list[Tensor] = []
        self.rates: list[float] = []
        self.dtypes: set[str] = set()

    @contextmanager
    def of(self, run: Any) -> Iterator[None]:
        """Look at `run`, inside the block."""

        def look(model: nn.Module, given: tuple, answer: Tensor) -> None:
            if model.training:
                self.rows.append(self._rows(given[0].detach().cpu()))
                self.rates.append(run.optimizer.param_groups[0]["lr"])
                self.dtypes.add(str(answer.dtype).removeprefix("torch."))

        handle = run.model.register_forward_hook(look)
        try:
            yield
        finally:
            handle.remove()

    def _rows(self, features: Tensor) -> Tensor:
        """Which parcels these are; -1 stands for none."""
        same = (features[:, None] == self.features[None]).all(dim=2)
        rows = torch.full((2 * BATCH,), -1)
        found = torch.where(same.any(dim=1), same.int().argmax(dim=1), -1)[: 2 * BATCH]
        rows[: len(found)] = found
        return rows


def _trained(functions: Functions, run: Any, steps: int) -> list[float]:
    losses = functions.train(run, steps)
    fits = isinstance(losses, list) and len(losses) == steps and all(isinstance(loss, float) for loss in losses)
    expect(fits, "train", wanted=f"a list of {steps} floats", got=describe(losses))
    return losses


class Story:
    """What a run goes through, in one process or several: its losses, its batches, its weights after each epoch."""

    def __init__(self, training: TensorDataset) -> None:
        self.losses: list[float] = []
        self.ends: list[Tensor] = []
        self.seen = Seen(training)

    def goes_on(self, functions: Functions, run: Any, until: int) -> None:
        """Train `run`, epoch by epoch, until it has had so many batches."""
        with self.seen.of(run):
            while (at := len(self.losses)) < until:
                self.losses += _trained(functions, run, min(until - at, PER_EPOCH - at % PER_EPOCH))
                if len(self.losses) % PER_EPOCH == 0:
                    self.ends.append(vector(run.model.state_dict()))

    def found(self, run: Any) -> dict:
        """All of it, and what `run` has come to."""
        return {
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "ends": torch.stack(self.ends),
            "rates": torch.tensor(self.seen.rates, dtype=torch.float64),
            "rows": torch.stack(self.seen.rows),
            "dtypes": sorted(self.seen.dtypes),
            "weights": vector(run.model.state_dict()),
            "best": _best(run),
        }


def _best(run: Any) -> Tensor:
    return vector(run.best) if run.best else torch.zeros(0)


def _uninterrupted(bench: Bench) -> dict:
    """The whole run in one process."""
    run, story = bench.start(), Story(bench.given.training)
    with _updates() as updates:
        story.goes_on(bench.here, run, TOTAL)
    features = bench.given.training.tensors[0].to(bench.device)
    run.model.train()
    with torch.no_grad():
        twice = [run.model(features).cpu() for _ in range(2)]
    found = story.found(run) | {"updates": len(updates), "dropout": _distance(*twice)}
    return {f"uninterrupted.{key}": value for key, value in found.items()}


@contextmanager
def _updates() -> Iterator[list]:
    """One entry per step of any optimizer inside the block."""
    made: list[int] = []
    handle = register_optimizer_step_post_hook(lambda *_: made.append(1))
    try:
        yield made
    finally:
        handle.remove()


def _run(bench: Bench, name: str, stops: tuple[int, ...], goes_on: bool = False, then: Any = None) -> dict:
    """A run that is saved after so many batches; then it ends and another process resumes it, unless it `goes_on`.

    `then` are other parcels than at first, to be validated on by whoever resumes it.
    """
    run, functions, story = bench.start(), bench.here, Story(bench.given.training)
    path, replayed, best = bench.place(), 0, torch.zeros(0)
    for stop in stops:
        story.goes_on(functions, run, stop)
        functions.save(run, path)
        if not goes_on:
            functions = bench.elsewhere
            with _updates() as updates:
                run = bench.resume(path, then)
            replayed, best = replayed + len(updates), _best(run)
    story.goes_on(functions, run, TOTAL)
    found = story.found(run) | {"replayed": replayed, "best_when_resumed": best}
    return {f"{name}.{key}": value for key, value in found.items()}


Disk = dict[str, bytes]  # what a folder holds, by name or path in it


def _savings(bench: Bench) -> dict:
    """Two savings to one file, what the disk held at every moment of the second, and a third without room for it."""
    first, second = bench.given.saved_at
    run, path = bench.start(), bench.place()
    _trained(bench.here, run, first)
    bench.here.save(run, path)
    earlier = vector(run.model.state_dict())
    _trained(bench.here, run, second - first)
    with _watched(path.parent) as moments, _disk_of_its_own(path.parent):
        bench.here.save(run, path)
    saved = vector(run.model.state_dict())
    came_back = [_resumed(bench, _laid_out(bench, disk)) for disk in moments]
    lost = sum(not any(torch.equal(weights, w) for w in (earlier, saved)) for weights, _ in came_back)
    found = {"count": len(moments), "lost": lost, "lost_share": lost / len(moments)}
    found |= {"again.lost": _killed_again(bench, moments[len(moments) // 2])}
    found |= {"last": bool(torch.equal(came_back[-1][0], saved))}
    _trained(bench.here, run, 1)
    found["full.raised"] = _failing_save(bench, run, path)
    found["full.kept"] = bool(torch.equal(_resumed(bench, path)[0], saved))
    return {f"moments.{key}": value for key, value in found.items()}


def _killed_again(bench: Bench, disk: Disk) -> int:
    """States of the disk without a checkpoint, while a run is saved that was resumed from a saving that was killed."""
    path = _laid_out(bench, disk)
    try:
        run = bench.resume(path)
    except Contract:
        raise
    except Exception:
        return 0  # counted already
    with _watched(path.parent) as moments, _disk_of_its_own(path.parent):
        bench.elsewhere.save(run, path)
    weights = vector(run.model.state_dict())
    return sum(not torch.equal(_resumed(bench, _laid_out(bench, disk))[0], weights) for disk in moments)


@contextmanager
def _disk_of_its_own(folder: Path) -> Iterator[None]:
    """Inside, nothing from elsewhere can be renamed into the folder, as checkpoints are on another disk than /tmp."""

    def beside(rename: Callable) -> Callable:
        def renamed(old: Any, new: Any, **options: Any) -> None:
            inside = [Path(os.fspath(name)).resolve().is_relative_to(folder.resolve()) for name in (old, new)]
            if inside[0] != inside[1] and not options:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), old, None, new)
            rename(old, new, **options)

        return renamed

    with mock.patch.object(os, "rename", beside(os.rename)), mock.patch.object(os, "replace", beside(os.replace)):
        yield


@contextmanager
def _watched(folder: Path) -> Iterator[list[Disk]]:
    """What the folder holds whenever it has changed: at any call that Python makes inside the block, and after it.

    A process that is killed there leaves just this, as what it had not yet handed over to the system dies with it.
    """
    moments: list[Disk] = []
    last: list = []

    def look(*_) -> None:
        files = list(_files_in(folder))
        now = [(entry.path, (s := entry.stat()).st_size, s.st_ino, s.st_mtime_ns) for entry in files]
        if now != last and len(moments) < MOMENTS:
            last[:] = now
            disk = {os.path.relpath(entry.path, folder): Path(entry.path).read_bytes() for entry in files}
            if disk not in moments:
                moments.append(disk)

    def safely(*_) -> None:
        with suppress(FileNotFoundError):  # another thread has just renamed it: the next call sees what is there then
            look()

    before = sys.getprofile() if callable(sys.getprofile()) else None  # cProfile cannot be put back
    threading.setprofile(safely), sys.setprofile(safely)
    try:
        yield moments
    finally:
        sys.setprofile(before), threading.setprofile(None)
        look()


def _files_in(folder: str | Path) -> Iterator[os.DirEntry]:
    """Its files, also those in folders of it: some write a checkpoint in a folder of its own first."""
    for entry in os.scandir(folder):
        if entry.is_dir():
            yield from _files_in(entry.path)
        else:
            yield entry


def _laid_out(bench: Bench, disk: Disk) -> Path:
    path = bench.place()
    for name, content in disk.items():
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / name).write_bytes(content)
    return path


def _resumed(bench: Bench, path: Path) -> tuple[Tensor, str]:
    """The weights of the run in `path` and "", or nothing and the name of what was raised."""
    try:
        return vector(bench.resume(path).model.state_dict()), ""
    except Contract:
        raise
    except Exception as error:
        return torch.zeros(0), type(error).__name__


def _failing_save(bench: Bench, run: Any, path: Path) -> str:
    """What `save` raises when the disk is full, or, where a system cannot be asked for that, has no such folder."""
    try:
        with _full_disk() as full:
            bench.here.save(run, path if full else path.parent / "gone" / path.name)
    except Exception as error:
        return type(error).__name__
    return ""


@contextmanager
def _full_disk() -> Iterator[bool]:
    """Inside, no file of this process can grow beyond ROOM bytes; yields False where there is no such limit."""
    try:
        import resource
    except ImportError:  # Windows
        yield False
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Order:
    """An object that makes a folder when somebody unpickles it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.folder),)


def _files(bench: Bench) -> dict:
    """What comes of a checkpoint with an order in it, of one from a card that is not here, and of broken ones."""
    run, path = bench.start(), bench.place()
    _trained(bench.here, run, bench.given.saved_at[0])
    bench.here.save(run, path)
    state, whole, weights = _content(path), path.read_bytes(), vector(run.model.state_dict())
    carried_out = bench.folder / "carried out"
    torch.save([state, Order(carried_out)], path)
    _resumed(bench, path)
    with mock.patch.object(torch.serialization, "location_tag", return_value="cuda:7"):
        torch.save(state, path)
    got, raised = _resumed(bench, path)
    found = {"order.carried_out": carried_out.exists(), "card.raised": raised, "card.same": torch.equal(got, weights)}
    for name, left in ("torn", whole[: int(len(whole) * bench.given.torn)]), ("empty", b""):
        path.write_bytes(left)
        found[f"{name}.raised"] = _resumed(bench, path)[1]
    path.unlink()
    return {f"file.{key}": value for key, value in found.items()} | {"file.missing.raised": _resumed(bench, path)[1]}


def _content(path: Path) -> Any:
    """What the subject has put into its file. In the subject's own process, so its objects may come with it."""
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        expect(False, "save", wanted="a file that torch.load reads", got=f"one of which it says {type(error).__name__}")
