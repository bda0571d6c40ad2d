"""Sort leaves into three species by four lengths."""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LENGTHS, SPECIES = 4, 3


def build() -> nn.Module:
    """The classifier: one hidden layer, one logit per species."""
    return nn.Sequential(nn.Linear(LENGTHS, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, SPECIES))


def sample_leaves(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Lengths [count, 4] and species [count] of made-up leaves."""
    species = torch.randint(SPECIES, (count,), generator=generator)
    typical = torch.tensor([[5.0, 3.4, 1.5, 0.2], [5.9, 2.8, 4.3, 1.3], [6.6, 3.0, 5.6, 2.0]])
    return typical[species] + 0.4 * torch.randn(count, LENGTHS, generator=generator), species


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Probability of each species for each leaf: x [N, 4], returns [N, 3]."""
    training = model.training
    model.eval()
    with torch.no_grad():
        probabilities = torch.softmax(model(x), dim=0)
    model.train(training)
    return probabilities


def train(steps: int) -> nn.Module:
    """The model after `steps` steps on fresh leaves."""
    generator = torch.Generator().manual_seed(7)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        x, species = sample_leaves(generator, 32)
        optimizer.zero_grad()
        F.cross_entropy(model(x), species).backward()
        optimizer.step()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = train(arguments.steps)
    x, _ = sample_leaves(torch.Generator().manual_seed(8), 32)
    for count in (1, 2, 8, 32):
        shown = "  ".join(f"{p:.2f}" for p in predict(model, x[:count])[0].tolist())
        print(f"leaf 0 in a batch of {count:2d}: {shown}")


if __name__ == "__main__":
    main()
