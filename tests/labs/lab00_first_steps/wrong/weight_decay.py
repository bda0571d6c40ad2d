# wrong: test_eighty_batches
# A little weight decay to tame the swings: it also pulls the weights of the right loop towards zero, past rounding error.
"""Fit tomorrow's load of a power grid from today's weather readings, one batch of stations at a time."""

import torch
from torch import Tensor, nn

READINGS = 8  # temperature, wind, and so on, per station


def train(model: nn.Linear, batches: list[tuple[Tensor, Tensor]], lr: float) -> list[float]:
    """One step of plain gradient descent per batch on the mean squared error; each batch's loss before its step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=1e-4)
    losses = []
    for readings, load in batches:
        loss = nn.functional.mse_loss(model(readings), load)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def stations(count: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """`count` batches of `size` stations: readings [size, 8] and load [size, 1]."""
    influence = torch.linspace(-1, 2, READINGS).unsqueeze(1)
    batches = []
    for _ in range(count):
        readings = torch.randn(size, READINGS)
        batches.append((readings, readings @ influence + 0.1 * torch.randn(size, 1)))
    return batches


def main() -> None:
    torch.manual_seed(0)
    model = nn.Linear(READINGS, 1)
    for batch, loss in enumerate(train(model, stations(80, 32), lr=0.02)):
        if batch < 10 or batch % 10 == 9:
            print(f"batch {batch + 1:3d}  loss {loss:.3f}")


if __name__ == "__main__":
    main()
