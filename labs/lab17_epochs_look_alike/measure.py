"""Measure lab17: run epochs with no, two and lasting workers, and find out of every clip how it was drawn."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from breakfix.contract import describe, expect, function
from breakfix.probes.loader import reads

COUNT, BATCH = 76, 8  # recordings: the last batch is smaller
LENGTH, WINDOW, RATE = 4096, 32, 1000
GAIN = (0.8, 1.25)
EPOCHS = 3
SAME = 5e-7  # gains that differ by less are one draw: they are found again to 1e-7
REGIMES = {"no workers": (0, False), "two workers": (2, False), "lasting workers": (2, True)}
RUNS = ("first", "again", "next seed")  # the same seed twice, then the seed after it
REPEATED = ("clips", "ids", "epoch", "trainer")  # what is kept of the later two


class Recordings(Dataset):
    """Secret recordings [2, LENGTH], acceleration and time, and their labels."""

    def __init__(self, signals: np.ndarray, labels: list[int]):
        self.signals, self.labels = signals, labels

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.signals[index]), self.labels[index]


@dataclass(frozen=True)
class Inputs:
    recordings: Recordings
    seeds: dict[str, int]  # of each regime's first run
    strangers: list[int]  # for random numbers that others draw


def inputs(seed: int) -> Inputs:
    rng = np.random.default_rng(seed)
    time = np.broadcast_to(np.arange(LENGTH, dtype=np.float32) / np.float32(RATE), (COUNT, LENGTH))
    signals = np.stack([rng.standard_normal((COUNT, LENGTH), dtype=np.float32), time], axis=1)
    seeds = rng.choice(10**6, len(REGIMES), replace=False) * 10
    strangers = rng.choice(2**31, len(REGIMES) * len(RUNS), replace=False)
    recordings = Recordings(signals, rng.integers(0, 1000, COUNT).tolist())
    return Inputs(recordings, dict(zip(REGIMES, seeds.tolist(), strict=True)), strangers.tolist())


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build_loader(recordings, seed, num_workers, persistent_workers=False) -> Iterable")
    given = inputs(seed)
    strangers, evidence = iter(given.strangers), {}
    for name, (workers, lasting) in REGIMES.items():
        for run, own in zip(RUNS, (0, 0, 1), strict=True):
            _seed_all(next(strangers))
            found = _run(build, given.recordings, given.seeds[name] + own, workers, lasting)
            evidence |= {f"{name}, {run}.{key}": found[key] for key in (found if run == "first" else REPEATED)}
    return evidence | _shown(evidence, given.recordings) | _control(given.seeds["two workers"])


def _seed_all(seed: int) -> None:
    """What the rest of the process draws has nothing to do with the loader's seed."""
    random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)


def _run(build: Callable, recordings: Recordings, seed: int, workers: int, lasting: bool) -> dict:
    """All epochs of one loader: what came, who read, and what the trainer drew meanwhile."""
    rows, trainer, readers = [], [], []
    with reads(recordings, states=False) as seen:
        loader = build(recordings, seed, workers, lasting) if lasting else build(recordings, seed, workers)
        for _epoch in range(EPOCHS):
            rows.append(_epoch_of(loader))
            trainer.append([torch.rand(()).item(), np.random.rand(), random.random()])
            readers.append(seen.take())
        everybody = seen.total
    return {
        "clips": np.concatenate([clips for clips, _, _, _ in rows]),
        "labels": np.concatenate([labels for _, labels, _, _ in rows]),
        "ids": np.concatenate([ids for _, _, ids, _ in rows]),
        "epoch": np.repeat(np.arange(EPOCHS), [len(ids) for _, _, ids, _ in rows]),
        "batches": [sizes for _, _, _, sizes in rows],
        "trainer": np.array(trainer),
        "read": [seen.count for seen in readers],
        "read_by_workers": [seen.count - seen.by_trainer for seen in readers],
        "workers": [len(seen.workers) for seen in readers],
        "workers_in_all": len(everybody.workers),
    }


def _epoch_of(loader: Iterable) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """Clips, labels, numbers and sizes of batches of one epoch, or of the first two if it does not end."""
    clips, labels, ids = [np.zeros((0, 2, WINDOW), np.float32)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    sizes = []
    for batch in loader:
        some, of, number = _checked(batch)
        clips.append(some), labels.append(of), ids.append(number), sizes.append(len(number))
        if sum(sizes) >= 2 * COUNT:
            break
    return np.concatenate(clips), np.concatenate(labels), np.concatenate(ids), sizes


def _checked(batch) -> list[np.ndarray]:
    triple = isinstance(batch, tuple | list) and len(batch) == 3 and all(isinstance(part, Tensor) for part in batch)
    expect(triple, "build_loader", wanted="batches (clips, labels, ids) of tensors", got=describe(batch))
    clips, labels, ids = batch
    fits = clips.dtype == torch.float32 and clips.shape[1:] == (2, WINDOW)
    expect(fits, "build_loader", wanted=f"clips float32 [b, 2, {WINDOW}]", got=describe(clips))
    for part in labels, ids:
        whole = part.dtype == torch.int64 and part.shape == clips.shape[:1]
        expect(whole, "build_loader", wanted="labels and ids int64 [b]", got=describe(part))
    known = bool(((ids >= 0) & (ids < COUNT)).all())
    expect(known, "build_loader", wanted=f"ids from 0 to {COUNT - 1}", got=str(ids.tolist()))
    return [part.detach().numpy().copy() for part in batch]


@dataclass(frozen=True)
class Draws:
    """Of clips that are windows of their recordings: where each starts, its gain, and by how much it is another."""

    starts: np.ndarray
    gains: np.ndarray
    errors: np.ndarray


def draws(clips: np.ndarray, ids: np.ndarray, recordings: Recordings) -> Draws:
    """How clips [n, 2, WINDOW] were drawn: the time in row 1 says where, the scale of row 0 the gain."""
    begins = np.nan_to_num(clips[:, 1, 0].astype(np.float64) * RATE, nan=-1, posinf=-1, neginf=-1)
    starts = np.clip(np.rint(begins), 0, LENGTH - WINDOW).astype(np.int64)
    windows = recordings.signals[ids[:, None], :, starts[:, None] + np.arange(WINDOW)].transpose(0, 2, 1)
    clips, windows = clips.astype(np.float64), windows.astype(np.float64)
    gains = (clips[:, 0] * windows[:, 0]).sum(1) / (windows[:, 0] ** 2).sum(1)
    windows[:, 0] *= gains[:, None]
    return Draws(starts, gains, np.abs(clips - windows).max(axis=(1, 2), initial=0))


def firsts(gains: np.ndarray) -> np.ndarray:
    """Of each gain whether it is new: no earlier one is the same."""
    order = np.argsort(gains, kind="stable")
    group = np.cumsum(np.diff(gains[order], prepend=-np.inf) > SAME)
    _, first = np.unique(group[np.argsort(order, kind="stable")], return_index=True)
    return np.isin(np.arange(len(gains)), first)


def _shown(evidence: dict, recordings: Recordings) -> dict:
    """For people: how many different draws there are in one epoch and in all, and when the new ones came."""
    found = {}
    for name in REGIMES:
        of = {key: evidence[f"{name}, first.{key}"] for key in ("clips", "ids", "epoch")}
        new = firsts(draws(of["clips"], of["ids"], recordings).gains)
        found[f"{name}.different"] = np.cumsum(new)
        found[f"{name}.different_in_an_epoch"] = int(new[of["epoch"] == 0].sum())
        found[f"{name}.different_in_all"] = int(new.sum())
    return found


class _Global(Dataset):
    """One number of NumPy's global generator for each index."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> float:
        return np.random.rand()


def _control(seed: int) -> dict:
    """Nothing of the subject: how many different numbers two workers draw from NumPy's global generator."""
    _seed_all(seed)
    numbers = [n for batch in DataLoader(_Global(), batch_size=BATCH, num_workers=2) for n in batch.tolist()]
    return {"numpy_global.different_in_an_epoch": len(set(numbers))}
