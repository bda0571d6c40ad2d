# right: Inspector.train() leaves the backbone evaluating, whoever calls it. Costs surprise: after model.train() not every part trains, and a backbone that is thawed later needs another line.
"""Tune the seam inspector: a backbone that all lines share, and this line's own head for its five kinds of seam."""

import argparse
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

KINDS, FEATURES = 5, 32


class Inspector(nn.Module):
    """Photos [B, 3, 16, 16] to logits [B, KINDS]."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, FEATURES, 3, padding=1, bias=False),
            nn.BatchNorm2d(FEATURES),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.neck = nn.BatchNorm1d(FEATURES)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(FEATURES, KINDS)

    def train(self, mode: bool = True) -> "Inspector":
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, photos: Tensor) -> Tensor:
        return self.head(self.dropout(self.neck(self.backbone(photos))))


def build(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model on `device`, its backbone frozen, and the optimizer of all else."""
    model = Inspector().to(device)
    model.backbone.requires_grad_(False)
    tuned = [p for p in model.parameters() if p.requires_grad]
    return model, torch.optim.SGD(tuned, lr=0.05, momentum=0.9)


def batches(dataset: Dataset, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """The dataset's photos and kinds on `device`, in its order."""
    for photos, kinds in DataLoader(dataset, batch_size=size):
        yield photos.to(device), kinds.to(device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every part of the model evaluates inside the block, and is as it was afterwards, whatever happens."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes.items():
            part.training = training


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, dataset: Dataset, batch_size: int) -> float:
    """One update per batch; the mean of the batches' losses."""
    device, losses = next(model.parameters()).device, []
    model.train()
    for photos, kinds in batches(dataset, batch_size, device):
        if len(photos) == 1:  # left over: one sample has no variance
            continue
        loss = F.cross_entropy(model(photos), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def evaluate(model: nn.Module, dataset: Dataset, batch_size: int) -> tuple[float, Tensor]:
    """Mean loss over the dataset, and the logits [N, KINDS] of its photos."""
    device, logits, total = next(model.parameters()).device, [], 0.0
    with evaluating(model):
        for photos, kinds in batches(dataset, batch_size, device):
            logits.append(model(photos))
            total += F.cross_entropy(logits[-1], kinds, reduction="sum").item()
    answers = torch.cat(logits)
    return total / len(answers), answers


def seams(count: int, generator: torch.Generator) -> TensorDataset:
    """Made-up photos [count, 3, 16, 16] and their kinds [count], at random."""
    kinds = torch.randint(KINDS, (count,), generator=generator)
    tint = torch.randn(KINDS, 3, 1, 1, generator=torch.Generator().manual_seed(3))
    return TensorDataset(0.5 + tint[kinds] + torch.randn(count, 3, 16, 16, generator=generator), kinds)


def fingerprint(module: nn.Module) -> str:
    """A short name for all values of a module."""
    state = b"".join(value.cpu().numpy().tobytes() for value in module.state_dict().values())
    return hashlib.sha256(state).hexdigest()[:8]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(11)
    training, validation = seams(256, generator), seams(97, generator)
    for times in (0, 1, 3):
        torch.manual_seed(0)
        model, optimizer = build(torch.device(arguments.device))
        published, scores = fingerprint(model.backbone), []
        for epoch in range(arguments.epochs):
            torch.manual_seed(epoch)  # whatever else draws numbers, an epoch draws the same
            loss = train_epoch(model, optimizer, training, batch_size=32)
            scores = [f"{evaluate(model, validation, batch_size=32)[0]:.4f}" for _ in range(times)]
        print(
            f"{times} validations per epoch: training loss {loss:.4f}, last validations {', '.join(scores) or 'none'}"
        )
        print(f"    model {fingerprint(model)}, backbone {published} -> {fingerprint(model.backbone)}")


if __name__ == "__main__":
    main()
