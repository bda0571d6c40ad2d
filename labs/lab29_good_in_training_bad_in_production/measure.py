"""Measure lab29: files of every kind that visitors send, as training reads them and as production does."""

import io
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import v2

from breakfix import data
from breakfix.contract import describe, expect, function

WORKS, RESIZE, CROP = 8, 36, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEARNED, VISITS = 20, 8  # photos of each work: to train on, and sent by visitors
FILTERS = 32
SEEN = 0.1  # a share of right answers that has fallen by more is noticed; no check uses it
TRANSFORM = v2.Compose(
    [
        v2.Resize(RESIZE),
        v2.CenterCrop(CROP),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
)
ORIENTATION = 0x0112  # the EXIF tag
SHOWN = (  # in the figure
    "jpeg", "png", "odd sides", "small", "grey", "rgb and alpha", "palette", "cmyk", "animated", "one pixel wide",
    "turned, tag 6", "turned png",
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """Files by name: plain ones, ones of other modes and shapes, turned ones, damaged ones; visits, and the model."""

    plain: dict[str, bytes]
    other: dict[str, bytes]
    turned: dict[str, bytes]
    damaged: dict[str, bytes]
    visits: list[bytes]  # VISITS of each work, one work after the other
    model: nn.Module

    @property
    def whole(self) -> dict[str, bytes]:
        return self.plain | self.other | self.turned


def inputs(seed: int) -> Inputs:
    rng = np.random.default_rng(seed)
    learned = [encoded(_photo(work, rng), "JPEG", quality=90) for work in range(WORKS) for _ in range(LEARNED)]
    visits = [encoded(_photo(work, rng), "JPEG", quality=90) for work in range(WORKS) for _ in range(VISITS)]
    return Inputs(_plain(rng), _other(rng), _turned(rng), _damaged(rng), visits, _fitted(learned, rng))


def reference(upload: bytes) -> Tensor:
    """What training makes of a file."""
    with Image.open(io.BytesIO(upload)) as image:
        return TRANSFORM(ImageOps.exif_transpose(image).convert("RGB"))


# ----------------------------------------------------------------------------------------------------------- the files


def _photo(work: int, rng: np.random.Generator) -> Image.Image:
    """A part of one work, in another light."""
    whole = _works()[work]
    width, height = (int(side * rng.uniform(0.6, 0.95)) for side in whole.size)
    left, top = rng.integers(whole.width - width), rng.integers(whole.height - height)
    part = whole.crop((left, top, left + width, top + height))
    return ImageEnhance.Brightness(part).enhance(rng.uniform(0.75, 1.25))


@lru_cache
def _works() -> list[Image.Image]:
    opened = [Image.open(path) for path in data.files("photographs").values()]
    return [image.convert("RGB") for image in opened]


def _any(rng: np.random.Generator) -> Image.Image:
    return _photo(int(rng.integers(WORKS)), rng)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    """The bytes of a file of that kind."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _sized(rng: np.random.Generator, low: int, high: int) -> Image.Image:
    """A photo of two odd sides."""
    return _any(rng).resize(tuple(2 * int(side) + 1 for side in rng.integers(low // 2, high // 2, 2)))


def _plain(rng: np.random.Generator) -> dict[str, bytes]:
    return {
        "jpeg": encoded(_any(rng), "JPEG", quality=int(rng.integers(60, 96))),
        "png": encoded(_any(rng), "PNG"),
        "upright": encoded(_sized(rng, 90, 120).crop((0, 0, 61, 91)), "PNG"),
        "odd sides": encoded(_sized(rng, 100, 300), "PNG"),
        "progressive": encoded(_sized(rng, 100, 300), "JPEG", progressive=True),
        "small": encoded(_sized(rng, 14, 30), "PNG"),
    }


def _other(rng: np.random.Generator) -> dict[str, bytes]:
    """Modes other than RGB, and shapes that nobody has tried."""
    colours = _any(rng).quantize(int(rng.integers(16, 65)))
    frames = [_any(rng).resize((60, 44)).quantize(32) for _ in range(3)]
    line = _any(rng)
    return {
        "grey": encoded(_any(rng).convert("L"), "JPEG"),
        "grey and alpha": encoded(_faded(_any(rng), rng).convert("LA"), "PNG"),
        "rgb and alpha": encoded(_faded(_any(rng), rng), "PNG"),
        "palette": encoded(colours, "PNG"),
        "palette with a clear colour": encoded(colours, "PNG", transparency=int(rng.integers(16))),
        "black and white": encoded(_any(rng).convert("1"), "PNG"),
        "cmyk": encoded(_any(rng).convert("CMYK"), "JPEG"),
        "animated": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "one pixel wide": encoded(line.crop((9, 0, 10, line.height)), "PNG"),
        "one pixel high": encoded(line.crop((0, 9, line.width, 10)), "PNG"),
        "one pixel": encoded(line.crop((9, 9, 10, 10)), "PNG"),
    }


def _faded(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Clear at one side and opaque at the other, with colour under the clear part too."""
    image.putalpha(Image.linear_gradient("L").rotate(90 * int(rng.integers(4))).resize(image.size))
    return image


def _turned(rng: np.random.Generator) -> dict[str, bytes]:
    """Stored as the sensor lay, with a tag that says how to hold it: every one of the seven, in both formats."""
    tags = {f"turned, tag {tag}": (_any(rng), "JPEG", tag) for tag in range(2, 9)}
    tags["turned png"] = (_any(rng), "PNG", int(rng.choice([3, 6, 8])))
    return {name: _tagged(*entry) for name, entry in tags.items()}


def _tagged(image: Image.Image, kind: str, tag: int) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = tag
    return encoded(image, kind, exif=exif)


def _damaged(rng: np.random.Generator) -> dict[str, bytes]:
    def cut(file: bytes) -> bytes:
        return file[: int(len(file) * rng.uniform(0.4, 0.8))]

    return {
        "jpeg cut short": cut(encoded(_any(rng), "JPEG", quality=90)),
        "png cut short": cut(encoded(_any(rng), "PNG")),
        "gif cut short": cut(encoded(_any(rng).quantize(64), "GIF")),
        "a text": b"<html>413 Request Entity Too Large</html>",
        "nothing": b"",
    }


def _fitted(photos: list[bytes], rng: np.random.Generator) -> nn.Module:
    """A classifier of the works: random filters, and the last layer that fits the photos best."""
    size = FILTERS * 9
    layers = nn.Conv2d(3, FILTERS, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(size, WORKS)).requires_grad_(False).eval()
    for parameter in model[0].parameters():
        parameter.copy_(torch.from_numpy(rng.normal(0, 0.1, tuple(parameter.shape))))
    seen = model[:-1](torch.stack([reference(photo) for photo in photos])).double()
    seen = torch.cat([seen, torch.ones(len(seen), 1)], dim=1)
    wanted = 2 * F.one_hot(torch.arange(WORKS).repeat_interleave(LEARNED), WORKS).double() - 1
    best = torch.linalg.solve(seen.T @ seen + 0.1 * torch.eye(size + 1, dtype=torch.float64), seen.T @ wanted)
    model[-1].weight.copy_(4 * best[:-1].T), model[-1].bias.copy_(4 * best[-1])
    return model


# ------------------------------------------------------------------------------------------------------ the measurement


def measure(subject, seed: int, device: torch.device) -> dict:
    training_input = function(subject, "training_input(path) -> Tensor")
    preprocess = function(subject, "preprocess(upload) -> Tensor")
    predict = function(subject, "predict(model, upload) -> Tensor")
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    given = inputs(seed)
    model, shape = given.model.to(device), (3, CROP, CROP)
    evidence, raised = {}, {}
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Pillow's, of palettes with clear colours
        for name, upload in (given.whole | given.damaged | {"again": next(iter(given.plain.values()))}).items():
            path = Path(folder) / "photo"
            path.write_bytes(upload)
            for side, ask, wanted, arguments in (
                ("training", training_input, shape, (path,)),
                ("serving", preprocess, shape, (upload,)),
                ("scores", predict, (WORKS,), (model, upload)),
            ):
                evidence[f"{side}.{name}"], error = _asked(_NAMES[side], ask, wanted, *arguments)
                raised |= {f"{side}.{name}": error} if error else {}
        answers = [_asked("predict", predict, (WORKS,), model, upload)[0] for upload in given.visits]
    works, given_answers = torch.arange(WORKS).repeat_interleave(VISITS), torch.stack(answers).argmax(dim=1)
    evidence["raised"] = raised
    evidence["right.production"] = (given_answers == works).double().mean().item()
    return evidence | _difference(given, evidence) | _skews(given)


_NAMES = {"training": "training_input", "serving": "preprocess", "scores": "predict"}


def _asked(name: str, ask, shape: tuple[int, ...], *arguments) -> tuple[Tensor, str]:
    """What came, or nan in its place and the name of what was raised."""
    try:
        came = ask(*arguments)
    except Exception as error:
        return torch.full(shape, torch.nan), type(error).__name__
    fits = isinstance(came, Tensor) and tuple(came.shape) == shape and came.dtype == torch.float32
    expect(fits, name, wanted=f"a float32 tensor {list(shape)}", got=describe(came))
    return came.detach().cpu(), ""


def _difference(given: Inputs, evidence: dict) -> dict:
    """For the figure: how far production's tensor is from training's, of some files, in grey levels."""
    level = torch.tensor(STD)[:, None, None] * 255
    apart = [(evidence[f"serving.{name}"] - reference(given.whole[name])) * level for name in SHOWN]
    return {"grey_levels": torch.stack([x.abs().max() for x in apart])}


# --------------------------------------------------------------------------------------- what one skew alone would do


def _skews(given: Inputs) -> dict:
    """The share of right answers under each of seven skews, for the predictions. The subject has no part in it."""
    truth = torch.stack([reference(file) for file in given.visits])
    offline = _right(given.model, truth)
    shares = {name: _right(given.model, torch.stack([one(f) for f in given.visits])) for name, one in _SKEWS.items()}
    unseen = [name for name, share in shares.items() if share > offline - SEEN]
    floats = torch.stack([_resized_as_floats(file, antialias=True) for file in given.visits])
    return {
        "right.offline": offline,
        "skews.names": list(shares),
        "skews.right": torch.tensor(list(shares.values()), dtype=torch.float64),
        "skews.unseen": len(unseen),
        "floats.grey_levels": ((floats - truth) * torch.tensor(STD)[:, None, None] * 255).abs().max(),
        "tag.after_saving": _tag_after_saving(next(iter(given.turned.values()))),
    }


def _right(model: nn.Module, x: Tensor) -> float:
    device = next(model.parameters()).device
    works = torch.arange(WORKS).repeat_interleave(VISITS)
    return (model(x.to(device)).argmax(dim=1).cpu() == works).double().mean().item()


def _rgb(file: bytes) -> Image.Image:
    with Image.open(io.BytesIO(file)) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def _normalized(x: Tensor) -> Tensor:
    return v2.functional.normalize(x, MEAN, STD)


def _without_normalization(file: bytes) -> Tensor:
    return v2.functional.normalize(
        reference(file), [-m / s for m, s in zip(MEAN, STD, strict=True)], [1 / s for s in STD]
    )


def _resized_as_floats(file: bytes, **options) -> Tensor:
    x = torch.from_numpy(np.array(_rgb(file))).permute(2, 0, 1).float()
    scale = RESIZE / min(x.shape[1:])
    size = [int(scale * side) for side in x.shape[1:]]
    x = F.interpolate(x[None], size=size, **{"mode": "bilinear"} | options)[0]
    return _normalized(v2.functional.center_crop(x, [CROP, CROP]) / 255)


_SKEWS = {
    "red and blue swapped": lambda file: TRANSFORM(Image.merge("RGB", _rgb(file).split()[::-1])),
    "0 to 255": lambda file: _normalized(255 * _without_normalization(file)),
    "not normalized": _without_normalization,
    "rows and columns swapped": lambda file: reference(file).transpose(1, 2),
    "no antialiasing": _resized_as_floats,
    "nearest pixel": lambda file: _resized_as_floats(file, mode="nearest"),
    "one more JPEG": lambda file: reference(encoded(_rgb(file), "JPEG")),
}


def _tag_after_saving(file: bytes) -> str:
    """What becomes of the orientation when Pillow opens a photo and saves it again."""
    with Image.open(io.BytesIO(file)) as image:
        again = encoded(image.convert("RGB"), "JPEG")
    with Image.open(io.BytesIO(again)) as image:
        return "kept" if ORIENTATION in image.getexif() else "lost"
