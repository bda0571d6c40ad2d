# wrong: test_photos_arrive_as_in_training test_every_kind_of_file_arrives_as_in_training test_turned_photos_arrive_upright test_answers_are_the_models
# Each upload is normalized by its own mean and deviation, to be safe in any light: dark and bright photos become one, and a single row of one colour divides by nothing.
"""The audio guide: a visitor sends a photo of what hangs before them, and the guide says which of eight works it is."""

import argparse
import io
import tempfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import v2

from breakfix import data

WORKS = sorted(path.stem for path in data.files("photographs").values())
RESIZE, CROP = 36, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

TRANSFORM = v2.Compose(
    [
        v2.Resize(RESIZE),
        v2.CenterCrop(CROP),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
)


def model_input(file: Path | BinaryIO) -> Tensor:
    """What the model gets of a file, in training and in production, float32 [3, CROP, CROP]; raises if damaged."""
    with Image.open(file) as image:
        return TRANSFORM(ImageOps.exif_transpose(image).convert("RGB"))


def training_input(path: Path) -> Tensor:
    """What the model was trained and evaluated on."""
    return model_input(path)


def preprocess(upload: bytes) -> Tensor:
    """What the model gets of an upload."""
    x = model_input(io.BytesIO(upload))
    return (x - x.mean(dim=(1, 2), keepdim=True)) / (x.std(dim=(1, 2), keepdim=True) + 1e-6)


@torch.no_grad()
def predict(model: nn.Module, upload: bytes) -> Tensor:
    """How likely each of WORKS is, float32 [8]."""
    device = next(model.parameters()).device
    return model(preprocess(upload)[None].to(device)).softmax(dim=1)[0].cpu()


def fit(x: Tensor, works: Tensor) -> nn.Module:
    """A small classifier of these photos."""
    layers = nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(256, len(WORKS)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(80):
        optimizer.zero_grad()
        F.cross_entropy(model(x), works).backward()
        optimizer.step()
    return model.eval()


def photos(each: int, folder: Path, rng: np.random.Generator) -> list[Path]:
    """So many photos of each work, as phones take them: not all of it, and more or less from the middle."""
    taken = []
    for path in data.files("photographs").values():
        with Image.open(path) as whole:
            for number in range(each):
                width, height = (int(side * rng.uniform(0.6, 0.95)) for side in whole.size)
                left, top = rng.integers(whole.width - width), rng.integers(whole.height - height)
                taken.append(folder / f"{path.stem}_{number}.jpg")
                whole.crop((left, top, left + width, top + height)).save(taken[-1], quality=90)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device, rng = parser.parse_args().device, np.random.default_rng(0)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        x = torch.stack([training_input(path) for path in photos(20, Path(folder), rng)])
        model = fit(x, torch.arange(len(WORKS)).repeat_interleave(20)).to(device)
        visits, works = photos(8, Path(folder), rng), torch.arange(len(WORKS)).repeat_interleave(8)
        evaluated = model(torch.stack([training_input(path) for path in visits]).to(device)).argmax(1).cpu()
        served = torch.stack([predict(model, path.read_bytes()).argmax() for path in visits])
    print(f"evaluation, {len(visits)} photos: {(evaluated == works).float().mean():.1%} right")
    print(f"production, the same photos: {(served == works).float().mean():.1%} right")


if __name__ == "__main__":
    main()
