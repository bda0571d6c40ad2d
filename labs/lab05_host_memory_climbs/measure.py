"""Measure lab05: run whole epochs through the subject's loader, and look after every batch at what lies on the host."""

import mmap
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
DEEPEST = 64  # slices of the longest scan of any regime
STOP = 2  # epochs' worth of scans after which a loader that does not end is left


@dataclass(frozen=True)
class Regime:
    """Scans and epochs, and what the host may hold meanwhile.

    Pinned: the starter holds 119 and 35 to 43 MiB, half its prefetching 63 and 21 to 31, PyTorch's default 35 and 13 to
    21. Waiting: the starter 50 to 54 and 23 to 26 MiB, half its prefetching 27 to 29 and 12 to 15.
    """

    scans: int
    shortest: int  # slices at a thickness of 1
    longest: int
    thickness: tuple[int, ...]  # of each epoch
    pinned_mib: float = 0.0
    waiting_mib: float = 0.0


REGIMES = {
    "resampled": Regime(80, 33, 64, (1, 2, 4), pinned_mib=48, waiting_mib=36),
    "mixed": Regime(86, 5, 40, (1, 1), pinned_mib=33, waiting_mib=18.5),
}
FEW = Regime(16, 1, 4, (1,))


class Scans(Dataset):
    """The scans of a regime, of `lengths` slices at thickness 1; it counts how often each is read, by whom ever."""

    def __init__(self, lengths: np.ndarray, starts: np.ndarray, values: np.ndarray):
        self.lengths, self.starts, self.values = lengths, starts, values
        self.thickness = 1
        # shared with forked workers, and not in /dev/shm, which is measured
        self.reads = np.frombuffer(mmap.mmap(-1, 8 * len(lengths)), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def depth(self, index: int) -> int:
        return -(-int(self.lengths[index]) // self.thickness)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.reads[index] += 1
        return torch.from_numpy(self.volume(index, self.thickness)).float(), index

    def volume(self, index: int, thickness: int) -> np.ndarray:
        """int16 [depth, SIDE, SIDE]: another part of the table of values for each scan and each thickness."""
        depth = -(-int(self.lengths[index]) // thickness)
        start = int(self.starts[index]) + 1009 * thickness
        return self.values[start : start + depth * SIDE * SIDE].reshape(depth, SIDE, SIDE)


def inputs(seed: int) -> dict:
    """The regimes' scans, and the seeds of their loaders."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-1024, 3072, 2 * DEEPEST * SIDE * SIDE).astype(np.int16)  # Hounsfield units
    return {
        "scans": {name: _draw(rng, regime, values) for name, regime in REGIMES.items()},
        "few": _draw(rng, FEW, values),
        "seeds": [int(s) for s in rng.choice(2**31, 3, replace=False)],
    }


def _draw(rng: np.random.Generator, regime: Regime, values: np.ndarray) -> Scans:
    """Lengths spread evenly over the range, whatever the seed: only their order and a little noise are drawn."""
    spread = (np.arange(regime.scans) + rng.random(regime.scans)) / regime.scans
    lengths = rng.permutation(regime.shortest + (spread * (regime.longest + 1 - regime.shortest)).astype(np.int64))
    return Scans(lengths, rng.integers(0, len(values) // 3, regime.scans), values)


WEIGHTS = np.arange(DEEPEST * SIDE * SIDE, dtype=np.float64) % 97 + 1  # whole numbers: sums of products are exact


def digest(volume: np.ndarray) -> float:
    """One exact number that any changed, missing or misplaced value changes."""
    flat = volume.reshape(-1).astype(np.float64)
    return float(flat @ WEIGHTS[: flat.size])


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build_loader(dataset, generator) -> Iterable")
    move = function(subject, "to_device(batch, device) -> (volumes, ids)")
    given, evidence = inputs(seed), {}
    for i, (name, scans) in enumerate(given["scans"].items()):
        generator = torch.Generator().manual_seed(given["seeds"][i])
        found = _Run(REGIMES[name], scans, move, device).through(build, generator)
        evidence |= {f"{name}.{key}": value for key, value in found.items()}
    return evidence | _orders(build, move, given, device) | _delayed(build, move, given, device)


class _Run:
    """The epochs of one regime, and what was seen after each batch."""

    def __init__(self, regime: Regime, scans: Scans, move, device: torch.device):
        self.regime, self.scans, self.move, self.device = regime, scans, move, device
        self.sizes = np.zeros(len(scans))  # bytes of each scan, at the present thickness
        self.delivered = np.zeros(len(scans), dtype=np.int64)
        self.weights = torch.from_numpy(WEIGHTS).to(device)
        self.exact = torch.empty_like(self.weights)  # one place for the float64 values of every scan in turn
        self.rows: list[tuple[int, int, float, float]] = []  # epoch, id, digest, largest value after its last slice
        self.looks: list[tuple[float, float, float, float]] = []  # bytes pinned, waiting, in shared memory; scans ahead
        self.batches: list[int] = []
        self.dtypes: set[str] = set()
        self.unsettled = 0
        self.after_epoch: list[int] = []

    def through(self, build, generator: torch.Generator) -> dict:
        """Build the loader and run all epochs of the regime; its evidence."""
        with _watched(self.device) as (pinned, log):
            loader = build(self.scans, generator)
            before = pinned.held
            for epoch, thickness in enumerate(self.regime.thickness):
                self.scans.thickness = thickness
                self.sizes = np.array([self.scans.depth(i) for i in range(len(self.scans))]) * SIDE * SIDE * 4
                self._epoch(loader, epoch, pinned)
                self.after_epoch.append(pinned.held)
            return self._evidence(pinned, log, before)

    def _epoch(self, loader, epoch: int, pinned) -> None:
        self.scans.reads[:], self.delivered[:] = 0, 0
        for batch in loader:
            self.unsettled += not settle(lambda: (int(self.scans.reads.sum()), pinned.held))
            self._look(pinned)
            self._take(self.move(batch, self.device), epoch)
            if self.device.type == "cuda":
                torch.cuda.synchronize()  # so that the block is free when the next batch asks for one
            del batch
            if self.delivered.sum() >= STOP * len(self.scans):
                break

    def _look(self, pinned) -> None:
        waiting = np.maximum(self.scans.reads - self.delivered, 0)
        self.looks.append((pinned.held, waiting @ self.sizes, shared_memory_bytes(), waiting.sum() - BATCH))

    def _take(self, moved, epoch: int) -> None:
        volumes, ids = _checked(moved, len(self.scans), self.device)
        for volume, i in zip(volumes, ids, strict=True):
            depth = self.scans.depth(i)
            found, after = volume[:depth].reshape(-1), volume[depth:]
            exact = self.exact[: found.numel()].copy_(found) @ self.weights[: found.numel()]
            self.rows.append((epoch, i, float(exact), float(after.abs().max()) if after.numel() else 0.0))
            self.dtypes.add(str(volume.dtype).removeprefix("torch."))
            self.delivered[i] += 1
        self.batches.append(len(ids))

    def _evidence(self, pinned, log: TransferLog, before: int) -> dict:
        rows, looks = np.array(self.rows).reshape(-1, 4), np.array(self.looks).reshape(-1, 4)
        first, last = self.after_epoch[0], self.after_epoch[-1]
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
            "shared_memory_peak_mib": float(looks[:, 2].max(initial=0)) / MIB,
            "ahead": int(looks[0, 3]) if len(looks) else 0,
            "batches_ahead": int(looks[0, 3]) // BATCH if len(looks) else 0,
            "wait_in": _where(looks),
            "moved_bytes": log.bytes,
            "moved_without_waiting_bytes": log.asynchronous_bytes,
            "unsettled": self.unsettled,
            "budget_mib": self.regime.pinned_mib,
        }


def _where(looks: np.ndarray) -> str:
    """Where the scans lie that wait after the first batch."""
    if not len(looks) or looks[0, 3] <= 0:
        return "nowhere: none wait"
    return "/dev/shm" if looks[0, 2] > looks[0, 1] / 2 else "pinned memory of the training process"


@contextmanager
def _watched(device: torch.device) -> Iterator[tuple]:
    """What is pinned and what is moved to the card. On a CPU the subject is told that there is CUDA, should it ask."""
    pretended = mock.patch.object(torch.cuda, "is_available", return_value=True)
    told = nullcontext() if device.type == "cuda" else pretended
    with watch_pinned(device) as pinned, TransferLog(device) as log, told:
        yield pinned, log


def _checked(moved, scans: int, device: torch.device) -> tuple:
    """What to_device returned, if it is what the contract says. Raises Contract."""
    pair = isinstance(moved, tuple | list) and len(moved) == 2
    expect(pair, "to_device", wanted="(volumes, ids)", got=describe(moved))
    volumes, ids = moved
    ids = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    known = all(isinstance(i, int) and 0 <= i < scans for i in ids)
    expect(known and len(ids) == len(volumes) > 0, "to_device", wanted="one id per volume", got=f"ids {ids}")
    for volume in volumes:
        fits = isinstance(volume, Tensor) and volume.shape[1:] == (SIDE, SIDE) and volume.device.type == device.type
        expect(fits, "to_device", wanted=f"tensors [depth, {SIDE}, {SIDE}] on {device}", got=describe(volume))
    return volumes, ids


def _orders(build, move, given: dict, device: torch.device) -> dict:
    """The order of one epoch of a few scans, three times: twice from one seed, once from another."""
    scans, (*_, seed) = given["few"], given["seeds"]
    found = {}
    with _watched(device):
        for i, name in enumerate(("first", "again", "other")):
            torch.manual_seed(seed + 1 + i)  # the global generator must not matter
            loader = build(scans, torch.Generator().manual_seed(seed + (name == "other")))
            ids = [_checked(move(batch, device), len(scans), device)[1] for batch in loader]
            found[f"order.{name}"] = np.array([i for batch in ids for i in batch], dtype=np.int64)
    return found


def _delayed(build, move, given: dict, device: torch.device) -> dict:
    """CUDA only, and not run on a GPU yet: every copy starts late, so that memory used again too early shows."""
    if device.type != "cuda":
        return {}
    scans = given["scans"]["resampled"]
    scans.thickness = 1
    weights, ids, digests = torch.from_numpy(WEIGHTS).to(device), [], []
    for batch in build(scans, torch.Generator().manual_seed(given["seeds"][0])):
        _torch.sleep_on_stream(20_000_000)
        volumes, batch_ids = _checked(move(batch, device), len(scans), device)
        ids += batch_ids
        for volume, i in zip(volumes, batch_ids, strict=True):
            found = volume[: scans.depth(i)].reshape(-1).double()
            digests.append(found @ weights[: found.numel()])
        del batch, volumes
    return {"delayed.ids": np.array(ids, dtype=np.int64), "delayed.digests": torch.stack(digests)}


def _in_turn(dataset: Dataset, generator: torch.Generator) -> Iterator:
    for start in range(0, len(dataset), BATCH):
        yield [dataset[i] for i in range(start, min(start + BATCH, len(dataset)))]


class _Again:
    """An epoch of `_in_turn` at each iteration."""

    def __init__(self, dataset: Dataset, generator: torch.Generator):
        self.dataset, self.generator = dataset, generator

    def __iter__(self) -> Iterator:
        return _in_turn(self.dataset, self.generator)


# One batch at a time, nothing pinned, nothing read ahead: what the measurement itself needs.
IDLE = SimpleNamespace(
    build_loader=_Again,
    to_device=lambda batch, device: ([v.to(device) for v, _ in batch], [i for _, i in batch]),
)
