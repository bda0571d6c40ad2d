"""Measure lab16: run the subject's two loaders, and count what is decoded, read, started and written to meanwhile."""

import gc
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler
from torchvision.io import decode_jpeg, encode_jpeg, read_file

from breakfix.contract import describe, expect, function
from breakfix.probes.loader import Waits, calls, private_bytes, settle

SPOT, BATCH, MIB = 32, 64, 2**20
NAME = "leaf_{:03}.jpg"
KINDS = range(1000, 10_000)  # codes of what may be on a leaf
PHOTOS, LEAST, MARKS = 32, 48, 150_000  # LEAST pixels of a photo, each way
FEW = 5000  # marks where their number does not matter
REGIMES = {"two workers": (2, 2, 2000, MARKS), "no workers": (0, 2, 500, FEW)}  # workers, epochs, spots of each, marks
STATIONS = {"two workers": (2, 2), "three workers": (3, 1), "no workers": (0, 1)}  # workers, validations
SHARDS = (30, 10, 25, 15, 20, 22, 18)  # records of each
STOP = 3  # times as many samples as an epoch has, after which a loader that does not end is left
FLIP = np.arange(3 * SPOT * SPOT, dtype=np.float64).reshape(3, SPOT, SPOT) % 97 + 1  # whole numbers: sums are exact


@dataclass(frozen=True)
class Inputs:
    """Photos as JPEG, the marks on them (photo, top, left, kind), each epoch's marks, and the station's records."""

    files: list[Tensor]
    marks: np.ndarray
    epochs: dict[str, list[np.ndarray]]
    records: list[Tensor]
    kinds: list[int]
    broken: int

    @property
    def names(self) -> list[str]:
        return [NAME.format(i) for i in range(len(self.files))]


def inputs(seed: int) -> Inputs:
    g, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    files = [_jpeg(LEAST + 8 * (i % 3), LEAST + 8 * (i % 4), g) for i in range(PHOTOS)]
    ranges = range(PHOTOS), range(LEAST - SPOT + 1), range(LEAST - SPOT + 1), KINDS
    marks = np.stack([rng.integers(r.start, r.stop, MARKS) for r in ranges], axis=1)
    epochs = {
        name: [rng.choice(marks_in_all, count, replace=False) for _ in range(times)]
        for name, (_, times, count, marks_in_all) in REGIMES.items()
    }
    total = sum(SHARDS)
    records, kinds = [_jpeg(SPOT, SPOT, g) for _ in range(total)], rng.integers(KINDS.start, KINDS.stop, total).tolist()
    return Inputs(files, marks, epochs, records, kinds, int(rng.integers(PHOTOS)))


def _jpeg(height: int, width: int, g: torch.Generator) -> Tensor:
    """A photo-like picture, smooth and coloured, as the bytes of a JPEG file."""
    rough = torch.rand(1, 3, height // 8 + 1, width // 8 + 1, generator=g)
    smooth = torch.nn.functional.interpolate(rough, size=(height, width), mode="bicubic").clamp(0, 1)
    return encode_jpeg((smooth[0] * 255).byte(), quality=90)


class Photos:
    """Photos in a folder, JPEG, each of a size of its own."""

    def __init__(self, folder: str, given: Inputs, broken: bool = False):
        self.folder, self.names = Path(folder), given.names
        for i, (name, data) in enumerate(zip(self.names, given.files, strict=True)):
            length = len(data) // 2 if broken and i == given.broken else len(data)
            (self.folder / name).write_bytes(data[:length].numpy().tobytes())

    def decode(self, name: str) -> Tensor:
        return decode_jpeg(read_file(str(self.folder / name)))


class Shard:
    """A part of the station's records, decoded as they are read."""

    def __init__(self, records: list[tuple[Tensor, int, int]]):
        self.records = records

    def __iter__(self) -> Iterator[tuple[Tensor, int, int]]:
        return (self.read(*record) for record in self.records)

    def read(self, data: Tensor, kind: int, number: int) -> tuple[Tensor, int, int]:
        return decode_jpeg(data), kind, number


class Epochs(Sampler):
    """The samples of one epoch after the other."""

    def __init__(self, epochs: list[np.ndarray]):
        self.left, self.count = iter(epochs), len(epochs[0])

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        epoch = next(self.left, None)
        expect(epoch is not None, "build_loader", wanted="a loader that asks the sampler once per epoch", got="more")
        return iter(epoch.tolist())


class Production:
    """What production does to a spot."""

    @staticmethod
    def augment(spot: Tensor) -> Tensor:
        return spot.flip(-1) if torch.rand(()) < 0.5 else spot


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build_loader(photos, marks, augment, sampler, num_workers) -> Iterable")
    validation = function(subject, "build_validation(shards, num_workers) -> Iterable")
    given, evidence = inputs(seed), {}
    (
        gc.collect(),
        gc.freeze(),
    )  # what lives already is not the subject's matter: no collection of its workers' is to write
    with tempfile.TemporaryDirectory() as folder:
        photos = Photos(folder, given)
        for name in REGIMES:
            torch.manual_seed(seed)
            evidence |= {f"{name}.{key}": value for key, value in _trained(build, photos, given, name).items()}
    for name, (workers, times) in STATIONS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that three workers are more than a small machine has cores
            found = _validated(validation, given, workers, times)
        evidence |= {f"validation, {name}.{key}": value for key, value in found.items()}
    for workers in 0, 2:
        with tempfile.TemporaryDirectory() as folder:
            evidence[f"broken photo, {workers} workers"] = _broken(
                build, Photos(folder, given, broken=True), given, workers
            )
    return evidence


def _marks(given: Inputs, count: int) -> Iterator[tuple[str, int, int, int]]:
    """The first marks, one after the other, as if parsed from a file: nobody keeps them but the subject."""
    for start in range(0, count, 1000):
        for photo, top, left, kind in given.marks[start : start + 1000].tolist():
            yield NAME.format(photo), top, left, kind


def _trained(build: Callable, photos: Photos, given: Inputs, name: str) -> dict:
    """All epochs of one loader: what came, who decoded and cut, and what the workers have written to."""
    workers, times, _, count = REGIMES[name]
    waits, rows, sizes, growth, augmented = Waits(), [], [], [], []
    with (
        calls(Photos, "decode", key=lambda self, name: name) as decodes,
        calls(Production, "augment", key=lambda spot: 0) as cut,
    ):
        loader = build(photos, _marks(given, count), Production.augment, Epochs(given.epochs[name]), workers)
        decoded, started = [], set()
        for _epoch in range(times):
            found = _epoch_of(waits(loader), len(given.epochs[name][0]))
            rows.append(found.rows), sizes.append(found.sizes), growth.append(found.growth)
            decoded.append(decodes.take()), augmented.append(cut.take())
            started |= decoded[-1].workers | augmented[-1].workers
        del loader
    table, every = np.concatenate(rows), decodes.total
    return {
        "ids": table[:, 0].astype(np.int64),
        "kinds": table[:, 1].astype(np.int64),
        "digests": table[:, 2],
        "batches": sizes,
        "decodes": np.array([seen.count for seen in decoded]),
        "decodes_in_last_epoch": decoded[-1].count,
        "most_decodes_of_a_photo": max(every.keys.values(), default=0),
        "photos_decoded": len(every.keys),
        "augmented": [seen.count for seen in augmented],
        "augmented_by_trainer": sum(seen.by_trainer for seen in augmented),
        "workers_started": len(started),
        "written_mib": max(growth),
        "wait_share": waits.share,
    }


@dataclass(frozen=True)
class Epoch:
    rows: np.ndarray  # of each sample: its number, its kind, its digest
    sizes: list[int]
    growth: float  # MiB of memory that workers wrote to, between the first batch and the last


def _epoch_of(loader: Iterable, count: int) -> Epoch:
    rows, sizes, before, after = [np.zeros((0, 3))], [], 0.0, 0.0
    for batch in loader:
        spots, kinds, ids = _checked(batch, "build_loader")
        found = spots.numpy().astype(np.float64).reshape(len(ids), -1) @ FLIP.reshape(-1)
        rows.append(np.stack([ids.numpy(), kinds.numpy(), found], axis=1))
        sizes.append(len(ids))
        if len(sizes) == 1 or sum(sizes) == count:
            settle()
            after = sum(private_bytes().values()) / MIB
            before = before or after
        if sum(sizes) >= STOP * count:
            break
    return Epoch(np.concatenate(rows), sizes, after - before)


def _checked(batch, name: str) -> tuple[Tensor, Tensor, Tensor]:
    triple = isinstance(batch, tuple | list) and len(batch) == 3 and all(isinstance(part, Tensor) for part in batch)
    expect(triple, name, wanted="batches (spots, kinds, ids) of tensors", got=describe(batch))
    spots, kinds, ids = batch
    fits = spots.dtype == torch.uint8 and spots.shape[1:] == (3, SPOT, SPOT)
    expect(fits, name, wanted=f"spots uint8 [b, 3, {SPOT}, {SPOT}]", got=describe(spots))
    for part in kinds, ids:
        whole = part.dtype == torch.int64 and part.shape == spots.shape[:1]
        expect(whole, name, wanted="kinds and ids int64 [b]", got=describe(part))
    return spots, kinds, ids


def _validated(build: Callable, given: Inputs, workers: int, times: int) -> dict:
    """All validations of one loader: which records came, how often each was read, by whom."""
    numbered, ends = list(zip(given.records, given.kinds, range(len(given.kinds)), strict=True)), np.cumsum(SHARDS)
    shards = [Shard(numbered[end - count : end]) for end, count in zip(ends, SHARDS, strict=True)]
    ids, wrong, seen = [], 0, []
    with calls(Shard, "read", key=lambda self, data, kind, number: number) as reads:
        loader = build(shards, workers)
        for _validation in range(times):
            came = 0
            for batch in loader:
                spots, kinds, numbers = _checked(batch, "build_validation")
                ids += numbers.tolist()
                came += len(numbers)
                wrong += _wrong(spots, kinds, numbers, given)
                if came >= STOP * len(numbered):
                    break
            seen.append(reads.take())
        del loader
    return {
        "ids": np.array(ids, dtype=np.int64),
        "records": len(ids),
        "wrong": wrong,
        "most_reads_of_a_record": max(max(s.keys.values(), default=0) for s in seen),
        "readers": [len(s.workers) for s in seen],
        "read_by_trainer": sum(s.by_trainer for s in seen),
        "workers_started": len(reads.total.workers),
    }


def _wrong(spots: Tensor, kinds: Tensor, numbers: Tensor, given: Inputs) -> int:
    """How many records are not what the station has under that number."""
    pairs = zip(spots, kinds.tolist(), numbers.tolist(), strict=True)
    return sum(
        kind != given.kinds[i] or not torch.equal(spot, decode_jpeg(given.records[i])) for spot, kind, i in pairs
    )


def _broken(build: Callable, photos: Photos, given: Inputs, workers: int) -> str:
    """What comes of a photo that was cut off: `named`, if an error says which, else what happened."""
    on_it = np.flatnonzero(given.marks[:FEW, 0] == given.broken)[:1]
    others = np.flatnonzero(given.marks[:FEW, 0] != given.broken)[: 3 * BATCH]
    try:
        epochs = Epochs([np.concatenate([others, on_it])])
        loader = build(photos, _marks(given, FEW), Production.augment, epochs, workers)
        count = sum(len(ids) for _, _, ids in loader)
    except Exception as error:
        with suppress(Exception):
            return "named" if given.names[given.broken] in str(error) else f"{type(error).__name__} without its name"
    return f"no error, {count} of {3 * BATCH + 1} samples"
