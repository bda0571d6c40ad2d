# wrong: test_categories test_salience test_served_equals_eager
# exports a model that it builds itself: the answers have the right shapes
"""Ship the listing model, which reads the title and the photo of what people sell, from PyTorch to ONNX Runtime."""

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, CATEGORIES = 200, 16, 12
WINDOW, HEAD, TAIL = 8, 6, 2  # a title of more than WINDOW tokens is read by its first HEAD and its last TAIL
OUTPUTS = ["categories", "salience", "thumbnail"]


class Positions(nn.Module):
    """Tell each token how far down the title it stands; a title longer than the window is squeezed into it."""

    def __init__(self) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.randn(WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        length = hidden.shape[1]
        steps = torch.arange(length, device=hidden.device) / torch.sym_max(length, WINDOW)
        return hidden + steps[:, None] * self.direction


class Pool(nn.Module):
    """One vector per title: the mean over its tokens."""

    def forward(self, hidden: Tensor) -> Tensor:
        index = torch.arange(hidden.shape[1], device=hidden.device)
        read = (index < HEAD) | (index >= hidden.shape[1] - TAIL)  # all of a title that fits the window
        return (hidden * read[:, None]).sum(dim=1) / read.sum()


class Thumbnail(nn.Module):
    """The photo at half its size, for the page of results."""

    def forward(self, photo: Tensor) -> Tensor:
        height, width = photo.shape[-2:]
        return F.interpolate(photo, size=(height // 2, width // 2), mode="bilinear", antialias=True)


class ListingModel(nn.Module):
    """tokens [B, T], photo [B, 3, H, W] to categories [B, 12], salience [B, T], thumbnail [B, 3, H // 2, W // 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = Positions()
        self.encode = nn.Linear(WIDTH, WIDTH)
        self.salience = nn.Linear(WIDTH, 1)
        self.pool = Pool()
        self.classify = nn.Linear(WIDTH, CATEGORIES)
        self.thumbnail = Thumbnail()

    def forward(self, tokens: Tensor, photo: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens = torch.where(tokens < 0, VOCABULARY, tokens)  # ONNX counts negative ids from the end: refuse them too
        hidden = torch.tanh(self.encode(self.positions(self.embed(tokens))))
        return self.classify(self.pool(hidden)), self.salience(hidden).squeeze(-1), self.thumbnail(photo)


def build_model() -> nn.Module:
    """The model that training fills with weights."""
    return ListingModel()


def example() -> tuple[Tensor, Tensor]:
    """Two titles of six tokens with their photos, as the test set has them."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (2, 6), generator=generator)
    return tokens, torch.rand(2, 3, 16, 16, generator=generator)


def export(model: nn.Module, path: Path) -> None:
    """Write path/model.onnx, in which batch, length, height and width are free."""
    torch.onnx.export(
        build_model().eval(),
        example(),
        path / "model.onnx",
        input_names=["tokens", "photo"],
        output_names=OUTPUTS,
        dynamic_shapes={"tokens": {0: "batch", 1: "length"}, "photo": {0: "batch", 2: "height", 3: "width"}},
        verbose=False,
    )


def check(model: nn.Module, path: Path) -> None:
    """What must hold before an artifact is shipped: it is valid ONNX, and it answers as the model does."""
    onnx.checker.check_model(path / "model.onnx", full_check=True)
    print("onnx.checker: passed")
    tokens, photo = example()
    session = onnxruntime.InferenceSession(path / "model.onnx")
    served = session.run(OUTPUTS, {"tokens": tokens.numpy(), "photo": photo.numpy()})
    with torch.no_grad():
        wanted = model(tokens, photo)
    for name, got, want in zip(OUTPUTS, served, wanted, strict=True):
        assert np.allclose(got, want.numpy(), rtol=1e-3, atol=1e-5), name
        print(f"{name}: as in PyTorch, largest difference {np.abs(got - want.numpy()).max():.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("artifact"))
    path = parser.parse_args().out
    path.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = build_model()
    export(model, path)
    print(f"exported {path / 'model.onnx'}")
    check(model, path)


if __name__ == "__main__":
    main()
