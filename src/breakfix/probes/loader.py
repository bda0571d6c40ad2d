"""What a loader does: how far ahead it is, who reads what and how often, what it takes in memory, how long one waits.

    waits = Waits()
    with reads(dataset) as seen, calls(train, "decode_jpeg") as decodes:
        for epoch in range(3):
            for batch in waits(loader):
                ...                                     # train
            print(seen.take(), decodes.take(), f"{waits.share:.0%} of the loop was spent waiting", sep="; ")

`calls` and `reads` count in this process and in every worker forked inside the block. `settle`, `shared_memory_bytes`
and `private_bytes` read /proc, so they are for Linux.
"""

import hashlib
import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.data import IterableDataset

# ----------------------------------------------------------------------------------------------- waiting


class Waits:
    """How long a loop waits for its next batch: `for batch in waits(loader)`, again for each epoch.

    `share` is that of the last epoch. It depends on the machine: look at it, and demand nothing of it. The processor's
    load says less: a loop that waits for a disk and a loop that waits for nothing can both show 10 %.
    """

    def __init__(self) -> None:
        self.waited: list[float] = []  # seconds in each epoch, of them
        self.seconds: list[float] = []

    @property
    def share(self) -> float:
        return self.waited[-1] / self.seconds[-1] if self.seconds and self.seconds[-1] else 0.0

    def __call__(self, loader: Iterable) -> Iterator:
        self.waited.append(0.0), self.seconds.append(0.0)
        started = asked = time.perf_counter()
        for batch in loader:
            self.waited[-1] += time.perf_counter() - asked
            yield batch
            asked = time.perf_counter()
            self.seconds[-1] = asked - started
        ended = time.perf_counter()
        self.waited[-1] += ended - asked
        self.seconds[-1] = ended - started


# ----------------------------------------------------------------------------------------------- counting


@dataclass(frozen=True)
class Seen:
    """What was called in one epoch, by key, by process, and from which states of random generators."""

    keys: Counter[Any]
    processes: Counter[int]
    workers: set[int]  # those of `processes` that are not the trainer's own
    new_workers: set[int]  # those of `workers` that had called nothing before
    states: dict[str, Counter[str]]  # of each generator that was drawn from: the states that calls began with

    @property
    def count(self) -> int:
        return self.keys.total()

    @property
    def again(self) -> int:
        """Calls beyond the first with the same key."""
        return self.count - len(self.keys)

    @property
    def by_trainer(self) -> int:
        """Calls in the trainer's own process."""
        return self.count - sum(self.processes[worker] for worker in self.workers)

    def __str__(self) -> str:
        """One line for people."""
        parts = [f"{self.count} calls, {self.again} of them again"]
        parts.append(f"{len(self.workers)} workers, {len(self.new_workers)} new")
        for name, states in self.states.items():
            parts.append(f"{name}: {states.total()} draws from {len(states)} states")
        return "; ".join(parts)


@dataclass
class Calls:
    """The calls so far. `take()` gives those since the last `take()`, `total` all that were taken."""

    _log: "_Log"
    _owner: int = field(default_factory=os.getpid)
    _taken: list[list] = field(default_factory=list)

    def take(self) -> Seen:
        """The calls since the last time; call it between two epochs, when no worker is at work."""
        before = {entry[0] for entry in self._taken}
        entries = self._log.read()
        self._taken += entries
        return self._seen(entries, before)

    @property
    def total(self) -> Seen:
        return self._seen(self._taken, set())

    def _seen(self, entries: list[list], before: set[int]) -> Seen:
        states: dict[str, Counter[str]] = {}
        for _, _, drawn in entries:
            for name, state in drawn.items():
                states.setdefault(name, Counter())[state] += 1
        processes = Counter(pid for pid, _, _ in entries)
        workers = set(processes) - {self._owner}
        return Seen(Counter(key for _, key, _ in entries), processes, workers, workers - before, states)


def fingerprint(value: Any) -> Any:
    """A short name for a value: numbers and strings as they are, of all else eight bytes of a digest."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, list | tuple):
        return _digest(json.dumps([fingerprint(v) for v in value]).encode())
    if isinstance(value, torch.Tensor):
        value = value.detach().contiguous().cpu().view(torch.uint8) if value.ndim else value.item()
        return fingerprint(value.numpy() if isinstance(value, torch.Tensor) else value)
    if isinstance(value, np.ndarray):
        value = value.tobytes()
    return _digest(value if isinstance(value, bytes | bytearray | memoryview) else repr(value).encode())


@contextmanager
def calls(
    owner: Any, name: str, key: Callable[..., Any] = lambda *args, **kwargs: fingerprint(args)
) -> Iterator[Calls]:
    """Count the calls of `owner.name`, here and in the workers that are forked inside the block.

    `owner` is the module or class where the caller looks the name up: after `from torchvision.io import decode_jpeg`
    that is the importing module. `key(*args)` names what is asked for; by default it is a digest of the arguments.
    """
    with _Log() as log:
        original = getattr(owner, name)

        def counted(*args, **kwargs):
            log.write(key(*args, **kwargs), {})
            return original(*args, **kwargs)

        with mock.patch.object(owner, name, counted):
            yield Calls(log)


@contextmanager
def reads(dataset: Any, states: bool = True) -> Iterator[Calls]:
    """Count which samples of `dataset` are read, by whom, and from which states of which random generators.

    Of an IterableDataset the samples go by their fingerprints. Two reads that begin with one state of a generator draw
    the same numbers from it. Looked at are the global ones and those that attributes of the dataset lead to;
    `states=False` leaves that out, which takes most of the time. Batches fetched by `__getitems__` are not seen.
    """
    kind, look = type(dataset), _states if states else lambda dataset: {}
    name, watched = ("__iter__", _items) if isinstance(dataset, IterableDataset) else ("__getitem__", _item)
    with _Log() as log, mock.patch.object(kind, name, watched(getattr(kind, name), dataset, look, log)):
        yield Calls(log)


def _item(original: Callable, dataset: Any, look: Callable, log: "_Log") -> Callable:
    """`original`, a __getitem__, logging what is read of `dataset`; others of its class are left alone."""

    def item(self, index):
        if self is not dataset:
            return original(self, index)
        before = look(self)
        found = original(self, index)
        log.write(fingerprint(index), _moved(before, look(self)))
        return found

    return item


def _items(original: Callable, dataset: Any, look: Callable, log: "_Log") -> Callable:
    """The same of an __iter__."""

    def items(self):
        source, before = iter(original(self)), look(self)
        for found in source:
            if self is dataset:
                log.write(fingerprint(found), _moved(before, look(self)))
            yield found
            before = look(self)

    return items


class _Log:
    """Lines that several processes append to a file without a name: nothing is left of it, however they end."""

    def __enter__(self) -> "_Log":
        self.file, self.at, self.rest = tempfile.TemporaryFile(mode="a+b", buffering=0), 0, []
        return self

    def __exit__(self, *exc: object) -> None:
        self.rest = self.read()  # for whoever asks afterwards
        self.file.close()

    def write(self, key: Any, drawn: dict[str, str]) -> None:
        if not self.file.closed:
            os.write(self.file.fileno(), json.dumps([os.getpid(), key, drawn]).encode() + b"\n")

    def read(self) -> list[list]:
        """What has been written since the last time."""
        if self.file.closed:
            rest, self.rest = self.rest, []
            return rest
        new = os.pread(self.file.fileno(), os.fstat(self.file.fileno()).st_size - self.at, self.at)
        self.at += len(new)
        return [json.loads(line) for line in new.splitlines()]


# ----------------------------------------------------------------------------------------------- random generators


def _moved(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """The states before of those generators that have been drawn from since."""
    return {name: state for name, state in before.items() if after.get(name) != state}


def _states(dataset: Any) -> dict[str, str]:
    """A short name for the state of each generator that the dataset may draw from."""
    owned = dict(_generators(dataset, "", 4))
    return {
        "torch": _digest(torch.get_rng_state().numpy().tobytes()),
        "numpy.random": _digest(_plain(np.random.get_state(legacy=False))),
        "random": _digest(repr(random.getstate()).encode()),
    } | {name: _digest(state) for name, state in owned.items()}


def _generators(value: Any, path: str, depth: int) -> Iterator[tuple[str, bytes]]:
    """(path, state) of every generator that attributes, lists and dicts lead to."""
    if isinstance(value, torch.Generator):
        yield path, value.get_state().numpy().tobytes()
    elif isinstance(value, np.random.Generator):
        yield path, _plain(value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        yield path, _plain(value.get_state(legacy=False))
    elif isinstance(value, random.Random):
        yield path, repr(value.getstate()).encode()
    elif depth and not isinstance(value, type):
        for name, part in _parts(value):
            yield from _generators(part, f"{path}.{name}" if path else name, depth - 1)


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    """The named parts of an object that may hold a generator; of long lists the first few."""
    if isinstance(value, dict):
        return [(str(name), part) for name, part in list(value.items())[:32]]
    if isinstance(value, list | tuple):
        return [(str(i), part) for i, part in enumerate(value[:32])]
    return list(getattr(value, "__dict__", {}).items()) if not isinstance(value, torch.Tensor | np.ndarray) else ()


def _plain(state: Any) -> bytes:
    return json.dumps(state, default=lambda array: array.tolist()).encode()


def _digest(data: bytes | bytearray | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


# ----------------------------------------------------------------------------------------------- memory, and rest


def private_bytes() -> dict[int, int]:
    """Bytes of memory that each descendant of this process has to itself, by its id. Linux only.

    A forked worker shares all its pages at first. A page that it writes to is copied, and from then on counts here; and
    in Python looking at an object writes to it, as it counts its references.
    """
    return {process: _private(process) for process in _family()[1:]}


def _private(process: int) -> int:
    rollup = _read(f"/proc/{process}/smaps_rollup")
    kib = rollup.partition(b"\nPrivate_Dirty:")[2].split()
    return int(kib[0]) * 1024 if kib else 0


def shared_memory_bytes() -> int:
    """Bytes in /dev/shm that this process and its workers have open: batches on their way. Linux only.

    Its own files are counted, not the file system's total, which others share. Small if the batches go on to be pinned.
    """
    where = os.stat("/dev/shm").st_dev
    sizes = {}
    for process in _family():
        for fd in _entries(f"/proc/{process}/fd"):
            try:
                info = os.stat(f"/proc/{process}/fd/{fd}")
            except OSError:  # closed meanwhile
                continue
            if info.st_dev == where:
                sizes[info.st_ino] = info.st_size
    return sum(sizes.values())


def settle(progress: Callable[[], Any] = lambda: None, still: float = 0.0, timeout: float = 5.0) -> bool:
    """Wait until all other threads of this process and of its workers sleep: the loader is as far ahead as it will go.

    Then what is counted does not depend on who was faster. Whoever waits for a disk or a network sleeps too: if the
    dataset does, ask for `still` seconds without a change of what `progress` returns. False after `timeout` seconds.
    """
    deadline, before, since = time.monotonic() + timeout, None, 0.0
    while time.monotonic() < deadline:
        asleep = _asleep()
        now = None if asleep is None else (asleep, progress())
        if now is None or now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since >= still:
            return True
        time.sleep(0.002)
    return False


_ASLEEP = (b"S", b"Z", b"X")  # waiting, or ended


def _asleep() -> dict[str, bytes] | None:
    """How often each other thread has been switched out, or None if one of them is not asleep.

    Two equal answers in a row: nobody ran in between, as running ends in being switched out.
    """
    found = {}
    own = f"/proc/{os.getpid()}/task/{threading.get_native_id()}"
    for process in _family():
        for thread in _entries(f"/proc/{process}/task"):
            path = f"/proc/{process}/task/{thread}"
            status = _read(f"{path}/status") if path != own else b""
            if status and status.partition(b"\nState:\t")[2][:1] not in _ASLEEP:
                return None
            found[path] = status.partition(b"\nvoluntary_ctxt_switches:")[2]
    return found


def _family() -> list[int]:
    """This process and its descendants."""
    found = [os.getpid()]
    for process in found:
        for thread in _entries(f"/proc/{process}/task"):
            found += map(int, (_read(f"/proc/{process}/task/{thread}/children") or b"").split())
    return found


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:  # it has just ended
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
