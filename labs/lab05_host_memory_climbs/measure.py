"""Measure lab05: run whole epochs through the subject's loader, and look after every batch at what lies on the host."""

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from breakfix.contract import describe, expect, function
from breakfix.probes import _torch
from breakfix.probes.loader import settle, shared_memory_bytes
from breakfix.probes.pinned import TransferLog, watch_pinned

SIDE, BATCH, MIB = 64, 4, 2**20
SCANS = 74  # of each dataset: more than ever wait at once, and the last batch is smaller
DEEPEST = 32  # slices of the longest scan of any regime
STOP = 2  # epochs' worth of scans after which a loader that does not end is left


@dataclass(frozen=True)
class Regime:
    """Scans and epochs, and what the host may hold meanwhile.

    Over 20 seeds. Pinned: the starter holds 59.5 and 18 to 19 MiB, half its prefetching 31.5 and 11 to 13, PyTorch's
    default 17.5 and 7 to 10. Waiting: the starter 26 and 12 to 13 MiB, half its prefetching 14 to 15 and 7, PyTorch's
    default 8 to 9 and 4 to 5.
    """

    shortest: int  # slices at a thickness of 1
    longest: int
    thickness: tuple[int, ...]  # of each epoch
    loaders: tuple[int, ...]  # the seeds that a loader is built from before each of the first epochs; the last goes on
    pinned_mib: float
    waiting_mib: float


REGIMES = {
    "resampled": Regime(17, 32, (1, 2, 4), loaders=(0,), pinned_mib=26, waiting_mib=19),
    "mixed": Regime(3, 20, (1, 1), loaders=(0, 1), pinned_mib=14, waiting_mib=9.5),
}


class Scans(Dataset):
    """The scans of a regime, of `lengths` slices at thickness 1; it counts how often each is read, by whom ever.

    Those that the thread reads that made the dataset, the trainer's own, are counted once more.
    """

    def __init__(self, lengths: np.ndarray, starts: np.ndarray, values: np.ndarray):
        self.lengths, self.starts, self.values = lengths, starts, values
        self.thickness = 1
        # shared with forked workers, and not in /dev/shm, which is measured
        self.reads = np.frombuffer(mmap.mmap(-1, 8 * len(lengths)), dtype=np.int64)
        self.trainer, self.read_by_trainer = _thread(), 0

    def __len__(self) -> int:
        return len(self.lengths)

    def depth(self, index: int) -> int:
        return -(-int(self.lengths[index]) // self.thickness)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.reads[index] += 1
        self.read_by_trainer += _thread() == self.trainer
        return torch.from_numpy(self.volume(index, self.thickness)).float(), index

    def volume(self, index: int, thickness: int) -> np.ndarray:
        """int16 [depth, SIDE, SIDE]: another part of the table of values for each scan and each thickness."""
        depth = -(-int(self.lengths[index]) // thickness)
        start = int(self.starts[index]) + 1009 * thickness
        return self.values[start : start + depth * SIDE * SIDE].reshape(depth, SIDE, SIDE)


def _thread() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


def inputs(seed: int) -> dict:
    """The regimes' scans, two seeds for their loaders, and one for what must not matter."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-1024, 3072, 2 * DEEPEST * SIDE * SIDE).astype(np.int16)  # Hounsfield units
    return {
        "scans": {name: _draw(rng, regime, values) for name, regime in REGIMES.items()},
        "seeds": [int(s) for s in rng.choice(2**31, 3, replace=False)],
    }


def _draw(rng: np.random.Generator, regime: Regime, values: np.ndarray) -> Scans:
    """Lengths spread evenly over the range, whatever the seed: only their order and a little noise are drawn."""
    spread = (np.arange(SCANS) + rng.random(SCANS)) / SCANS
    lengths = rng.permutation(regime.shortest + (spread * (regime.longest + 1 - regime.shortest)).astype(np.int64))
    return Scans(lengths, rng.integers(0, len(values) // 3, SCANS), values)


WEIGHTS = np.arange(DEEPEST * SIDE * SIDE, dtype=np.float64) % 97 + 1  # whole numbers: sums of products are exact
EXACT = np.empty_like(WEIGHTS)  # one place for the values of every scan in turn


def digest(volume: np.ndarray) -> float:
    """One exact number that any changed, missing or misplaced value changes."""
    exact = EXACT[: volume.size]
    exact[:] = volume.reshape(-1)
    return float(exact @ WEIGHTS[: volume.size])


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build_loader(dataset, generator) -> Iterable")
    move = function(subject, "to_device(batch, device) -> (volumes, ids)")
    given, evidence = inputs(seed), {}
    for i, (name, scans) in enumerate(given["scans"].items()):
        torch.manual_seed(given["seeds"][2] + i)  # the global generator must not matter
        found = _Run(REGIMES[name], scans, move, device).through(build, given["seeds"])
        evidence |= {f"{name}.{key}": value for key, value in found.items()}
    return evidence | _delayed(build, move, given, device)


class _Run:
    """The epochs of one regime, and what was seen after each batch."""

    def __init__(self, regime: Regime, scans: Scans, move, device: torch.device):
        self.regime, self.scans, self.move, self.device = regime, scans, move, device
        self.sizes = np.zeros(SCANS)  # bytes of each scan, at the present thickness
        self.delivered = np.zeros(SCANS, dtype=np.int64)
        self.rows: list[tuple[int, int, float, float]] = []  # epoch, id, digest, largest value after its last slice
        self.looks: list[tuple[float, float, float]] = []  # bytes pinned, bytes waiting, scans ahead
        self.shared: list[int] = []  # bytes in shared memory after the first batch of each epoch
        self.batches: list[int] = []
        self.dtypes: set[str] = set()
        self.unsettled = self.read_by_trainer = 0
        self.after_epoch: list[int] = []

    def through(self, build, seeds: list[int]) -> dict:
        """Build the loaders and run all epochs of the regime; its evidence."""
        with _watched(self.device) as (pinned, log):
            before, loader = [], None
            for epoch, thickness in enumerate(self.regime.thickness):
                self.scans.thickness = thickness
                self.sizes = np.array([self.scans.depth(i) for i in range(SCANS)]) * SIDE * SIDE * 4
                if epoch < len(self.regime.loaders):
                    loader = None  # else two would have their memory at once
                    loader = build(self.scans, torch.Generator().manual_seed(seeds[self.regime.loaders[epoch]]))
                    before.append(pinned.held)
                self._epoch(loader, epoch, pinned)
                self.after_epoch.append(pinned.held)
            return self._evidence(pinned, log, before[0])

    def _epoch(self, loader, epoch: int, pinned) -> None:
        self.scans.reads[:], self.delivered[:], self.scans.read_by_trainer = 0, 0, 0
        for batch in loader:
            self.unsettled += not settle(lambda: (int(self.scans.reads.sum()), pinned.held))
            self._look(pinned, epoch)
            self._take(self.move(batch, self.device), epoch)
            if self.device.type == "cuda":
                torch.cuda.synchronize()  # so that the block is free when the next batch asks for one
            del batch
            if self.delivered.sum() >= STOP * SCANS:
                break
        self.read_by_trainer = max(self.read_by_trainer, self.scans.read_by_trainer)

    def _look(self, pinned, epoch: int) -> None:
        waiting = np.maximum(self.scans.reads - self.delivered, 0)
        self.looks.append((pinned.held, waiting @ self.sizes, waiting.sum() - BATCH))
        if len(self.shared) == epoch:
            self.shared.append(shared_memory_bytes())

    def _take(self, moved, epoch: int) -> None:
        volumes, ids = _checked(moved, self.device)
        for volume, i in zip(volumes, ids, strict=True):
            depth, found = self.scans.depth(i), volume.float().numpy(force=True)
            after = float(np.abs(found[depth:]).max(initial=0))
            self.rows.append((epoch, i, digest(found[:depth]), after))
            self.dtypes.add(str(volume.dtype).removeprefix("torch."))
            self.delivered[i] += 1
        self.batches.append(len(ids))

    def _evidence(self, pinned, log: TransferLog, before: int) -> dict:
        rows, looks = np.array(self.rows).reshape(-1, 4), np.array(self.looks).reshape(-1, 3)
        first, last = self.after_epoch[0], self.after_epoch[-1]
        ahead = int(looks[0, 2]) if len(looks) else 0
        return {
            "epoch": rows[:, 0].astype(np.int64),
            "ids": rows[:, 1].astype(np.int64),
            "digests": rows[:, 2],
            "padding": float(rows[:, 3].max(initial=0)),
            "dtypes": ", ".join(sorted(self.dtypes)),
            "batches": np.array(self.batches),
            "pinned_by": pinned.source,
            "pinned_mib": looks[:, 0] / MIB,
            "pinned_peak_mib": pinned.held_peak / MIB,
            "pinned_before_first_batch_mib": before / MIB,
            "pinned_after_epoch_mib": np.array(self.after_epoch) / MIB,
            "pinned_growth": last / first if first else 0.0,
            "pinned_blocks": pinned.allocations,
            "waiting_mib": looks[:, 1] / MIB,
            "waiting_peak_mib": float(looks[:, 1].max(initial=0)) / MIB,
            "shared_memory_peak_mib": max(self.shared, default=0) / MIB,
            "ahead": ahead,
            "batches_ahead": ahead // BATCH,
            "wait_in": self._where(ahead),
            "read_by_trainer": self.read_by_trainer,
            "moved_bytes": log.bytes,
            "moved_without_waiting_bytes": log.asynchronous_bytes,
            "unsettled": self.unsettled,
            "budget_mib": self.regime.pinned_mib,
        }

    def _where(self, ahead: int) -> str:
        """Where the scans lie that wait after the first batch."""
        if ahead <= 0:
            return "nowhere: none wait"
        return "/dev/shm" if self.shared[0] > self.looks[0][1] / 2 else "pinned memory of the training process"


@contextmanager
def _watched(device: torch.device) -> Iterator[tuple]:
    """What is pinned and what is moved to the card. On a CPU the subject is told that there is CUDA, should it ask."""
    pretended = mock.patch.object(torch.cuda, "is_available", return_value=True)
    told = nullcontext() if device.type == "cuda" else pretended
    with watch_pinned(device) as pinned, TransferLog(device) as log, told:
        yield pinned, log


def _checked(moved, device: torch.device) -> tuple:
    """What to_device returned, if it is what the contract says. Raises Contract."""
    pair = isinstance(moved, tuple | list) and len(moved) == 2
    expect(pair, "to_device", wanted="(volumes, ids)", got=describe(moved))
    volumes, ids = moved
    ids = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    known = all(isinstance(i, int) and 0 <= i < SCANS for i in ids)
    expect(known and len(ids) == len(volumes) > 0, "to_device", wanted="one id per volume", got=f"ids {ids}")
    for volume in volumes:
        fits = isinstance(volume, Tensor) and volume.shape[1:] == (SIDE, SIDE) and volume.device.type == device.type
        expect(fits, "to_device", wanted=f"tensors [depth, {SIDE}, {SIDE}] on {device}", got=describe(volume))
    return volumes, ids


def _delayed(build, move, given: dict, device: torch.device) -> dict:
    """CUDA only, and not run on a GPU yet: every copy starts late, so that memory used again too early shows."""
    if device.type != "cuda":
        return {}
    scans = given["scans"]["resampled"]
    scans.thickness = 1
    weights, ids, digests = torch.from_numpy(WEIGHTS).to(device), [], []
    for batch in build(scans, torch.Generator().manual_seed(given["seeds"][0])):
        _torch.sleep_on_stream(20_000_000)
        volumes, batch_ids = _checked(move(batch, device), device)
        ids += batch_ids
        for volume, i in zip(volumes, batch_ids, strict=True):
            found = volume[: scans.depth(i)].reshape(-1).double()
            digests.append(found @ weights[: found.numel()])
        del batch, volumes
    return {"delayed.ids": np.array(ids, dtype=np.int64), "delayed.digests": torch.stack(digests)}


def _in_turn(dataset: Dataset, generator: torch.Generator) -> Iterator:
    for start in range(0, 2 * BATCH, BATCH):
        yield [dataset[i] for i in range(start, start + BATCH)]


class _Again:
    """The batches of `_in_turn` at each iteration."""

    def __init__(self, dataset: Dataset, generator: torch.Generator):
        self.dataset, self.generator = dataset, generator

    def __iter__(self) -> Iterator:
        return _in_turn(self.dataset, self.generator)


# Two batches an epoch, nothing pinned, nothing read ahead: the memory that the measurement itself needs.
IDLE = SimpleNamespace(
    build_loader=_Again,
    to_device=lambda batch, device: ([v.to(device) for v, _ in batch], [i for _, i in batch]),
)
