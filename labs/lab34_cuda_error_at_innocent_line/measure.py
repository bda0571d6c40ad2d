"""Measure lab34: deliveries of tiles, sound and not, and what survey, loader and a training step make of them."""

import gc
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from breakfix.contract import Contract, describe, expect, function
from breakfix.probes.late import LateErrors
from breakfix.probes.placement import FakeCard, RealCard

SIDE, TILES, BATCH, RATE = 12, 14, 4, 0.5
LETTERS = "bcdfghjklmnpqrstvwxz"  # of the names: no name is part of another, and none is an English word


@dataclass(frozen=True)
class Delivery:
    """What a list of tiles is like: how many classes, which label counts nowhere, and what is wrong with some tiles."""

    classes: int
    ignore: int | None
    spoiled: dict[int, list[int]]  # which tiles have which labels that are no class
    from_epoch: int = 0  # when they get them

    @property
    def sound(self) -> bool:
        return not self.spoiled


@dataclass(frozen=True)
class Inputs:
    """The deliveries, and for each the names, the photos and the masks before anything was spoiled."""

    deliveries: dict[str, Delivery]
    names: dict[str, list[str]]
    photos: dict[str, np.ndarray]  # uint8 [TILES, 3, SIDE, SIDE]
    masks: dict[str, np.ndarray]  # int32 [TILES, SIDE, SIDE]
    where: dict[str, np.ndarray]  # [TILES, 2]: the pixel of a tile that is spoiled
    seeds: list[int]

    def mask(self, name: str, i: int, epoch: int) -> np.ndarray:
        """The mask of tile `i` as it is read in an epoch."""
        delivery, mask = self.deliveries[name], self.masks[name][i].copy()
        if epoch >= delivery.from_epoch:
            row, column = self.where[name][i]
            for k, label in enumerate(delivery.spoiled.get(i, [])):
                mask[row, (column + k) % SIDE] = label
        return mask


def inputs(seed: int) -> Inputs:
    rng = np.random.default_rng(seed)
    deliveries = _deliveries(rng)
    letters = {name: rng.permutation(len(LETTERS) ** 4)[:TILES] for name in deliveries}
    masks = {name: _masks(rng, d) for name, d in deliveries.items()}
    return Inputs(
        deliveries,
        {name: [_spelled(int(n)) for n in numbers] for name, numbers in letters.items()},
        {name: rng.integers(0, 256, (TILES, 3, SIDE, SIDE), dtype=np.uint8) for name in deliveries},
        masks,
        {name: rng.integers(0, SIDE, (TILES, 2)) for name in deliveries},
        [int(s) for s in rng.choice(2**31, 2, replace=False)],
    )


def _deliveries(rng: np.random.Generator) -> dict[str, Delivery]:
    """Which tiles are spoiled is drawn; what is wrong with them is what surveyors do."""
    tiles = rng.permuted(np.tile(np.arange(TILES), (7, 1)), axis=1)  # another one in each delivery
    a, b, c, d, e, f, g = (int(row[0]) for row in tiles)
    few, many = (int(n) for n in rng.integers((5, 90), (12, 120)))
    wide = 256 + int(rng.integers(few))
    return {
        "sound": Delivery(few, None, {}),
        "sound, with void": Delivery(many, 255, {}),
        "sound, class 0 ignored": Delivery(few, 0, {}),
        "a new class": Delivery(few, 255, {a: [few]}),
        "void, and nobody said so": Delivery(few, None, {b: [255]}),
        "minus one": Delivery(many, 255, {c: [-1]}),
        "minus one hundred": Delivery(few, None, {d: [-100]}),
        "two bytes wide": Delivery(few, 255, {e: [wide]}),
        "several": Delivery(few, 255, {f: [-3, few, few + 2], int(tiles[5, 1]): [254, 65535]}),
        "redrawn": Delivery(many, 255, {g: [many]}, from_epoch=1),
    }


def _masks(rng: np.random.Generator, delivery: Delivery) -> np.ndarray:
    """Every class is somewhere; a sixth of the pixels has the label that counts nowhere, where there is one."""
    masks = rng.integers(0, delivery.classes, (TILES, SIDE, SIDE), dtype=np.int32)
    masks.reshape(-1)[rng.permutation(masks.size)[: delivery.classes]] = np.arange(delivery.classes)
    if delivery.ignore is not None:
        masks[rng.random(masks.shape) < 1 / 6] = delivery.ignore
    return masks


def _spelled(number: int) -> str:
    letters = []
    for _ in range(4):
        number, k = divmod(number, len(LETTERS))
        letters.append(LETTERS[k])
    return "".join(letters)


class Tile:
    """A tile as the subject gets it."""

    def __init__(self, given: Inputs, delivery: str, i: int, day: list[int]):
        self.name, self._read = given.names[delivery][i], lambda: given.mask(delivery, i, day[0])
        self._photo = given.photos[delivery][i]

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        return self._photo.copy(), self._read()


# ----------------------------------------------------------------------------------------------------- the measurement


def measure(subject, seed: int, device: torch.device) -> dict:
    bench = Bench(
        function(subject, "survey(tiles, classes, ignore) -> dict[str, list[int]]"),
        function(subject, "build_loader(tiles, classes, ignore, batch_size, generator) -> Iterable"),
        function(subject, "train_step(model, optimizer, photos, masks, ignore) -> Tensor"),
        inputs(seed),
        device,
    )
    evidence = _one_class(bench) | _late_error()
    for name, delivery in bench.given.deliveries.items():
        found = _surveyed(bench, name) | _loaded(bench, name)
        if delivery.sound:
            found |= _trained(bench, name) | _on_card(bench, name)
        evidence |= {f"{name}.{key}": value for key, value in found.items()}
    return evidence | _let_in(bench, evidence) | (_on_a_real_card() if device.type == "cuda" else {})


@dataclass(frozen=True)
class Bench:
    """The subject's functions, what they are tried on, and where."""

    survey: Callable
    build_loader: Callable
    train_step: Callable
    given: Inputs
    device: torch.device

    def tiles(self, name: str, day: list[int]) -> list[Tile]:
        return [Tile(self.given, name, i, day) for i in range(TILES)]

    def loader(self, name: str, day: list[int], seed: int = 0):
        delivery, generator = self.given.deliveries[name], torch.Generator().manual_seed(self.given.seeds[seed])
        return self.build_loader(self.tiles(name, day), delivery.classes, delivery.ignore, BATCH, generator)


@contextmanager
def trouble(told: dict) -> Iterator[None]:
    """Go on after an exception of any type; its type and what it says go into `told`."""
    try:
        yield
    except Contract:
        raise
    except Exception as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", [])])
        told |= {"raised": type(error).__name__, "is_value_error": isinstance(error, ValueError), "said": said[:4000]}


def _surveyed(bench: Bench, name: str) -> dict:
    """What the survey says on the day on which the spoiled tiles are there."""
    delivery, told = bench.given.deliveries[name], {}
    found = {}
    with trouble(told):
        found = bench.survey(bench.tiles(name, [delivery.from_epoch]), delivery.classes, delivery.ignore)
    expect(isinstance(found, dict), "survey", wanted="a dict of names to lists of labels", got=describe(found))
    return {
        "survey": {str(k): [int(v) for v in vs] for k, vs in found.items()},
        "survey.raised": told.get("raised", ""),
    }


def _loaded(bench: Bench, name: str) -> dict:
    """Two epochs through the loader: what arrives, or what it says instead."""
    told = {"raised": "", "is_value_error": False, "said": "", "names_told": [], "labels_told": []}
    day, batches, dtypes = [0], [[], []], set()
    with trouble(told):
        loader = bench.loader(name, day)
        for epoch in range(2):
            day[0] = epoch
            for batch in loader:
                pair = isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(t, Tensor) for t in batch)
                expect(pair, "the loader", wanted="photos and masks", got=describe(batch))
                batches[epoch].append(tuple(t.clone() for t in batch))
                dtypes |= {str(t.dtype) for t in batch}
    gc.collect()  # an iterator that an exception has left
    told["names_told"] = [n for n in bench.given.names[name] if n in told["said"]]
    labels = {label for spoiled in bench.given.deliveries[name].spoiled.values() for label in spoiled}
    told["labels_told"] = [n for n in sorted(labels) if re.search(rf"(?<![\w-]){n}(?!\w)", told["said"])]
    told |= {"epochs": sum(bool(b) for b in batches), "dtypes": sorted(dtypes)}
    for epoch, found in enumerate(batches):
        told |= _arrived(bench, name, epoch, found)
    return told


def _arrived(bench: Bench, name: str, epoch: int, batches: list[tuple[Tensor, Tensor]]) -> dict:
    """Which tiles came, told by their photos, and in how many of them a label is not the file's."""
    order, wrong = [], 0
    of_photo = {photo.tobytes(): i for i, photo in enumerate(bench.given.photos[name])}
    for photos, masks in batches:
        for photo, mask in zip(photos, masks, strict=True):
            i = of_photo.get((photo * 255).round().to(torch.uint8).numpy().tobytes(), -1)
            order.append(i)
            wrong += i < 0 or not np.array_equal(mask.numpy().astype(np.int64), bench.given.mask(name, i, epoch))
    sizes = [len(photos) for photos, _ in batches]
    return {f"order {epoch}": np.array(order, dtype=np.int64), f"wrong {epoch}": wrong, f"sizes {epoch}": sizes}


def _let_in(bench: Bench, evidence: dict) -> dict:
    """What becomes of the deliveries that are not sound; shown, not graded."""
    counts, outcome = [0, 0, 0], "is refused"
    for name, delivery in bench.given.deliveries.items():
        if delivery.sound:
            continue
        if evidence[f"{name}.raised"]:
            counts[2] += 1
            continue
        labels = {label % 256 for spoiled in delivery.spoiled.values() for label in spoiled}  # as one byte
        silent = all(label < delivery.classes or label == delivery.ignore for label in labels)
        counts[silent] += 1
        if name == "minus one":
            outcome = "trains, and nobody is told"
    return {"let_in": np.array(counts, dtype=np.float64), "minus one.outcome": outcome}


def _one_class(bench: Bench) -> dict:
    """A loader for one class, on tiles that have the labels 0 and 1."""
    told = {"raised": "", "is_value_error": False, "said": ""}
    with trouble(told):
        generator = torch.Generator().manual_seed(0)
        bench.build_loader([Tile(bench.given, "sound", i, [0]) for i in range(TILES)], 1, None, BATCH, generator)
    return {f"one class.{key}": value for key, value in told.items()}


def model_for(classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, classes, 1))


def batch_of(given: Inputs, name: str, device: torch.device) -> tuple[Tensor, Tensor]:
    photos, masks = torch.from_numpy(given.photos[name][:BATCH]) / 255, torch.from_numpy(given.masks[name][:BATCH])
    return photos.to(device), masks.to(torch.uint8).to(device)


def _trained(bench: Bench, name: str) -> dict:
    """Loss and weights of two steps on one batch of a sound delivery."""
    delivery = bench.given.deliveries[name]
    model = model_for(delivery.classes, bench.given.seeds[0]).to(bench.device)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
    for _ in range(2):
        loss = bench.train_step(model, optimizer, *batch_of(bench.given, name, bench.device), delivery.ignore)
        fits = isinstance(loss, Tensor) and loss.ndim == 0
        expect(fits, "train_step", wanted="the loss, a 0-d tensor", got=describe(loss))
        losses.append(loss.detach().float().cpu())
    weights = torch.cat([p.detach().float().cpu().flatten() for p in model.parameters()])
    return {"losses": torch.stack(losses), "weights": weights}


def _on_card(bench: Bench, name: str) -> dict:
    """A step on a card: what it reads from there, or copies."""
    delivery = bench.given.deliveries[name]
    card = RealCard() if bench.device.type == "cuda" else FakeCard()
    told = {"raised": ""}
    with trouble(told), card:
        model = card.copy(model_for(delivery.classes, 0)).to(card.device)
        batch = (t.to(card.device) for t in card.copy(batch_of(bench.given, name, torch.device("cpu"))))
        optimizer, (photos, masks) = torch.optim.SGD(model.parameters(), lr=RATE), batch
        card.events.clear()
        bench.train_step(model, optimizer, photos, masks, delivery.ignore)
    waits = len(card.of("read")) + len(card.of("copied")) if not told["raised"] else math.nan
    return {"card.raised": told["raised"], "card.waits": waits}


# ---------------------------------------------------------------------------------- where a card tells of a wrong label


STEP = """
logits = model(photos)
loss = F.cross_entropy(logits, masks)
loss.backward()
optimizer.step()
print(loss.item())
"""


def _late_error() -> dict:
    """The line of a plain step that is blamed for a label out of range: on the CPU, and by the model of a card."""
    return {"cpu.line": _blamed(torch.no_grad()), "modelled.line": _blamed(LateErrors())}


def _blamed(mode) -> str:
    model = model_for(3, 0)
    names = {"model": model, "F": F, "optimizer": torch.optim.SGD(model.parameters(), lr=RATE), "print": lambda _: None}
    names |= {"photos": torch.rand(2, 3, 4, 4), "masks": torch.full((2, 4, 4), 3)}
    lines = STEP.strip().splitlines()
    for line in lines:
        try:
            with mode:
                exec(line, names)
        except (IndexError, RuntimeError):
            return line
    return "none"


SCRIPT = f"""
import sys, torch
from torch import nn
from torch.nn import functional as F
model = nn.Conv2d(3, 3, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
photos, masks = torch.rand(2, 3, 4, 4).cuda(), torch.full((2, 4, 4), 3).cuda()
for line in {STEP.strip().splitlines()!r}:
    try:
        exec(line)
    except Exception as error:
        sys.exit(type(error).__name__ + "|" + line)
"""


def _on_a_real_card() -> dict:
    """The same on a card, in a process of its own, as its context is lost. Not run on a GPU yet."""
    found = {}
    for key, blocking in ("cuda", "0"), ("cuda.blocking", "1"):
        environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": blocking}
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=60
        )
        kind, _, line = ran.stderr.strip().rpartition("\n")[2].partition("|")
        found |= {f"{key}.raised": kind, f"{key}.line": line}
    return found
