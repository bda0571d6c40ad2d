"""Ship the listing model, which reads the title and the photo of what people sell, from PyTorch to ONNX Runtime."""

import argparse
from pathlib import Path

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


# batch, length, height, width: the exporter sees the first; parity is tested on both sides of every limit
SIZES = [(2, 6, 16, 16), (1, 6, 16, 16), (3, 1, 16, 16), (2, 8, 32, 24), (2, 9, 15, 13), (4, 40, 33, 47)]


def sample(batch: int, length: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Titles and photos of one size."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (batch, length), generator=generator)
    return tokens, torch.rand(batch, 3, height, width, generator=generator)


def export(model: nn.Module, path: Path) -> None:
    """Write path/model.onnx, in which batch, length, height and width are free."""
    torch.onnx.export(
        model.eval(),
        sample(*SIZES[0]),
        path / "model.onnx",
        input_names=["tokens", "photo"],
        output_names=OUTPUTS,
        dynamic_shapes={"tokens": {0: "batch", 1: "length"}, "photo": {0: "batch", 2: "height", 3: "width"}},
        verbose=False,
    )


def check(model: nn.Module, path: Path) -> None:
    """What must hold before an artifact is shipped: it is valid ONNX, and it answers as the model, size by size."""
    onnx.checker.check_model(path / "model.onnx", full_check=True)
    print("onnx.checker: passed")
    onnxruntime.set_default_logger_severity(4)  # what fails is raised as well
    session = onnxruntime.InferenceSession(path / "model.onnx")
    for size in SIZES:
        tokens, photo = sample(*size)
        served = session.run(OUTPUTS, {"tokens": tokens.numpy(), "photo": photo.numpy()})
        with torch.no_grad():
            wanted = model(tokens, photo)
        for got, want in zip(served, wanted, strict=True):
            torch.testing.assert_close(torch.from_numpy(got), want, rtol=1e-4, atol=1e-5)
        print(f"{size}: as in PyTorch")
    for token in (-1, VOCABULARY):
        assert refuses(session, token), f"production answers token {token}"
        print(f"token {token}: refused")


def refuses(session: onnxruntime.InferenceSession, token: int) -> bool:
    """Whether a title with this token raises."""
    tokens, photo = sample(*SIZES[0])
    tokens[0, 0] = token
    try:
        session.run(OUTPUTS, {"tokens": tokens.numpy(), "photo": photo.numpy()})
    except Exception:  # of a type that onnxruntime does not publish
        return True
    return False


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
