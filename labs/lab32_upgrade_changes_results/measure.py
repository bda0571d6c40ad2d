"""Measure lab32: compare versions, resize as on several of them, and put changed and unchanged models to the test."""

import copy
import io
import linecache
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from breakfix import subject as subjects
from breakfix.contract import describe, expect, function

# large enough for two threads to share the work, and for one answer to be lost in a mean
TAGS, SIZE, PHOTOS = 64, (96, 128), 4
SCALES = {"answers near 1": 1.0, "answers near 0.0001": 1e-4, "answers near 10000": 1e4}
ROUNDING, CHANGE = 1e-5, 1e-3  # in shares of the answers' root mean square: at most this, and at least this
KNOWN = ["1.13.1", "2.0.0a0", "2.0.0", "2.9.1", "2.10.0", "2.14.1+cu130"]
PAIRS = [
    *[(version, wanted) for version in KNOWN for wanted in ("1.13", "2.0", "2.9", "2.10", "2.14.1")],
    *[("0.29.1", wanted) for wanted in ("0.3", "0.9", "0.29", "0.29.1", "0.30", "1.0")],
]
ENDS = ["", "", "+cpu", "+cu118", "a0", "rc2", ".dev20260101+cpu", "a0+gitf00d"]
SECRET = 60  # pairs of versions more
ALIVE: list[Tensor] = []  # every answer: a later one at the same address would have the same hash() by chance
SIZES = {
    "half": (57, 75, (24, 32)),
    "a third": (96, 96, (32, 32)),
    "larger": (20, 23, (33, 61)),
    "mixed": (40, 31, (25, 50)),
}


@dataclass(frozen=True)
class Inputs:
    """Pairs of a version and a wanted one, images to resize by regime, and a model's images and weights."""

    pairs: list[tuple[str, str]]
    images: dict[str, Tensor]
    photos: Tensor
    weights: int  # the seed of them
    place: tuple[int, int]  # the answer that is changed in some models


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)

    def drawn(high: int) -> int:
        return int(torch.randint(high, (), generator=g))

    def version() -> str:
        return f"{drawn(3)}.{drawn(21)}.{drawn(3)}"

    pairs = [(version() + ENDS[drawn(len(ENDS))], version()) for _ in range(SECRET // 2)]
    for _ in range(SECRET // 2):  # close to one another
        wanted = version()
        pairs.append((wanted + ENDS[drawn(len(ENDS))], wanted if drawn(2) else wanted.rpartition(".")[0]))
    images = {name: torch.randn(2, 3, *sizes[:2], generator=g) for name, sizes in SIZES.items()}
    photos = torch.rand(PHOTOS, 3, 201, 267, generator=g)
    return Inputs(PAIRS + pairs, images, photos, drawn(2**31), (drawn(PHOTOS), drawn(TAGS)))


def approved(images: Tensor, size: tuple[int, int]) -> Tensor:
    """The resize that the taggers were approved with."""
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False)


class Tagger(nn.Module):
    """Photos of any size to logits [N, TAGS], which are about `scale` in size."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, TAGS))
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, photos: Tensor) -> Tensor:
        ALIVE.append(self.scale * self.head(self.features(approved(photos, SIZE))))
        return ALIVE[-1]


class Wrapped(nn.Module):
    """A tagger that is asked in a way of its own."""

    def __init__(self, tagger: nn.Module, ask: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.tagger, self.ask = tagger, ask

    def forward(self, photos: Tensor) -> Tensor:
        ALIVE.append(self.ask(self.tagger, photos))
        return ALIVE[-1]


def tagger(given: Inputs, scale: float, device: torch.device) -> nn.Module:
    """The model, the same one each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(given.weights)
        model = Tagger(1.0)
    with torch.no_grad():
        size = model(given.photos).square().mean().sqrt()
    model.scale.fill_(scale / size)
    return model.to(device).eval()


def unchanged(model: nn.Module) -> dict[str, nn.Module]:
    """Models that answer the same but for rounding."""

    def made(ask: Callable) -> nn.Module:
        return Wrapped(copy.deepcopy(model), ask)

    def in_float64(model: nn.Module, photos: Tensor) -> Tensor:
        return model.double()(photos.double()).float()

    def without_onednn(model: nn.Module, photos: Tensor) -> Tensor:
        with warnings.catch_warnings(action="ignore"), torch.backends.mkldnn.flags(enabled=False):
            return model(photos)  # switching it warns of cards that nobody has here

    return {
        "once more": model,
        "one photo at a time": made(lambda model, photos: torch.cat([model(photo[None]) for photo in photos])),
        "channels last": copy.deepcopy(model).to(memory_format=torch.channels_last),
        "in float64": made(in_float64),
        "rounded otherwise": made(lambda model, photos: _nudged(model(photos))),
        "other convolutions": made(without_onednn),
        "two threads": model,  # and whoever asks it uses two
    }


def _nudged(answers: Tensor) -> Tensor:
    """Every second answer a little larger, the others smaller, by what is just rounding; their size is the same."""
    signs = 1 - 2 * (torch.arange(answers.numel(), device=answers.device).reshape(answers.shape) % 2)
    return answers + 0.7 * ROUNDING * answers.square().mean().sqrt() * signs


def changed(model: nn.Module, given: Inputs, scale: float) -> dict[str, nn.Module]:
    """Models that answer otherwise."""

    def made(before: Callable = lambda photos: photos, after: Callable = lambda answers: answers) -> nn.Module:
        return Wrapped(model, lambda model, photos: after(model(before(photos))))

    def with_one(answers: Tensor, how: Callable) -> Tensor:
        answers = answers.clone()
        answers[given.place] = how(answers[given.place])
        return answers

    def resized(**how: Any) -> Callable:  # to the size at which the model's own resize changes nothing
        return lambda photos: F.interpolate(photos, size=SIZE, align_corners=False, **how)

    return {
        "one answer by a thousandth": made(after=lambda a: with_one(a, lambda one: one + 1.05 * CHANGE * scale)),
        "all answers by some thousandths": made(after=lambda a: a * (1 + 3 * CHANGE)),
        "two photos' answers swapped": made(after=lambda a: a[[1, 0, *range(2, PHOTOS)]]),
        "antialiased photos": made(before=resized(mode="bilinear", antialias=True)),
        "bicubic photos": made(before=resized(mode="bicubic")),
        "half precision": made(after=lambda a: a.half()),
        "the same in double precision": made(after=lambda a: a.double()),
        "the same with a dimension more": made(after=lambda a: a[None]),
        "the same in one row": made(after=lambda a: a.flatten()),
        "one tag for all": made(after=lambda a: a[:, :1]),
        "one answer nan": made(after=lambda a: with_one(a, lambda one: one * float("nan"))),
        "all answers zero": made(after=torch.zeros_like),
    }


def measure(subject, seed: int, device: torch.device) -> dict:
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    at_least = function(subject, "at_least(version, wanted) -> bool")
    given = inputs(seed)
    answers = [at_least(version, wanted) for version, wanted in given.pairs]
    odd = next((answer for answer in answers if not isinstance(answer, bool)), None)
    expect(odd is None, "at_least", wanted="True or False", got=describe(odd))
    evidence = {"at_least": torch.tensor(answers)} | _resized(subject, given, device) | _tested(subject, given, device)
    x = torch.ones(3)
    return evidence | {
        "strings.smaller": str("0.29.1" < "0.9"),
        "hash.equal": "equal" if hash(x) == hash(x.clone()) else "different",
    }


def _resized(subject: ModuleType, given: Inputs, device: torch.device) -> dict:
    """What resize makes of each regime's images, as on each version and as on this one."""
    resize = function(subject, "resize(images, size, torch_version) -> Tensor")
    found = {}
    for name, (_, _, size) in SIZES.items():
        images = given.images[name].to(device)
        made = [resize(images, size, version) for version in KNOWN] + [resize(images, size)]
        fits = all(isinstance(m, Tensor) and m.shape == (2, 3, *size) and m.dtype == torch.float32 for m in made)
        expect(fits, "resize", wanted=f"float32 images [2, 3, {size[0]}, {size[1]}]", got=describe(made[0]))
        found[f"resize.{name}"] = torch.stack([m.cpu() for m in made])
    half = found["resize.half"].double()
    moved = [((other - half[0]).norm() / half[0].norm()).item() for other in half[:-1]]
    return found | {"resize.moved": max(moved), "resize.by_version": torch.tensor(moved, dtype=torch.float64)}


def _loaded_again(subject: ModuleType) -> ModuleType:
    """The same file once more, as another process has it: with nothing of what the first has kept."""
    source = "".join(linecache.getlines(subject.__file__)).encode()
    sys.modules.pop(subject.__name__, None)
    return subjects.load(source, subject.__file__)


def _tested(subject: ModuleType, given: Inputs, device: torch.device) -> dict:
    """What the regression test says of each model, with a record that was written and read again."""
    record = function(subject, "record(model, images) -> golden")
    test = function(_loaded_again(subject), "regression_test(model, golden) -> bool")
    alarms, missed, refused, rounding = [], [], [], {}
    for name, scale in SCALES.items():
        model, photos = tagger(given, scale, device), given.photos.to(device)
        with torch.no_grad():
            then = model(photos)
        golden = record(model, photos)
        golden, trouble = _through_a_file(golden)
        refused += [f"{name}: {trouble}"] if trouble else []
        torch.manual_seed(given.weights + 1)
        for case, same in unchanged(model).items():
            with _threads(2 if case == "two threads" else 1), torch.no_grad():
                alarms += [] if _verdict(test, same, golden) == "same" else [f"{name}: {case}"]
                off = ((same(photos) - then).abs().max() / scale).item()
            rounding[case] = max(rounding.get(case, 0.0), off)
        for case, other in changed(model, given, scale).items():
            missed += [f"{name}: {case}"] if _verdict(test, other, golden) == "same" else []
    found = {"alarms": alarms, "missed": missed, "refused": refused, "rounding": max(rounding.values())}
    return {f"test.{key}": value for key, value in found.items()} | {f"rounding.{k}": v for k, v in rounding.items()}


def _through_a_file(golden: Any) -> tuple[Any, str]:
    """The record as a file gives it back by default; if it does not, as it was, and what was raised."""
    file = io.BytesIO()
    try:
        torch.save(golden, file)
        file.seek(0)
        return torch.load(file), ""
    except Exception as error:
        return golden, type(error).__name__


def _verdict(test: Callable, model: nn.Module, golden: Any) -> str:
    try:
        answer = test(model, golden)
    except Exception as error:  # a test that falls over has not passed
        return type(error).__name__
    expect(isinstance(answer, bool), "regression_test", wanted="True or False", got=describe(answer))
    return "same" if answer else "changed"


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
