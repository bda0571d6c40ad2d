# right: Mask and decay are one table, not saved, and cut to size: no mask is made in forward. It costs 64 KiB a head on the card.
"""Train the forecaster of a wind turbine's bearing temperature: six hours ahead, from readings of the last days."""

import argparse
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SENSORS, WIDTH, HEADS, DEPTH, LONGEST, HOURS = 6, 32, 4, 2, 128, 6


def decays() -> Tensor:
    """[HEADS, LONGEST, LONGEST]: the longer ago a reading is, the less it counts, each head at a rate of its own."""
    ago = torch.arange(LONGEST).unsqueeze(1) - torch.arange(LONGEST)
    rates = 0.5 ** torch.arange(1, HEADS + 1).float()
    return torch.where(ago < 0, float("-inf"), -rates.view(-1, 1, 1) * ago)


class Block(nn.Module):
    """Self-attention over the readings so far, then a small network for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attend, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor, decay: Tensor) -> Tensor:
        batch, steps, _ = x.shape
        q, k, v = self.attend(self.norm(x)).view(batch, steps, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 + decay
        found = scores.softmax(-1) @ v
        x = x + self.mix(found.transpose(1, 2).reshape(batch, steps, WIDTH))
        return x + self.feed(x)


class Forecaster(nn.Module):
    """Readings [B, T, SENSORS] to the temperature of the next HOURS hours [B, HOURS]."""

    def __init__(self, statistics: dict[str, np.ndarray]) -> None:
        super().__init__()
        for name in ("mean", "std"):
            self.register_buffer(name, torch.from_numpy(statistics[name]).float())
        self.register_buffer("decay", decays(), persistent=False)  # the code says what is in it
        self.enter, self.leave = nn.Linear(SENSORS, WIDTH), nn.Linear(WIDTH, HOURS)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))

    def forward(self, readings: Tensor) -> Tensor:
        steps = readings.shape[1]
        x = self.enter(((readings - self.mean) / self.std).to(self.enter.weight.dtype))
        for block in self.blocks:
            x = block(x, self.decay[:, :steps, :steps])
        return self.leave(x[:, -1])


def build(statistics: dict[str, np.ndarray]) -> Forecaster:
    return Forecaster(statistics)


def loss_fn(forecast: Tensor, truth: Tensor) -> Tensor:
    """Mean squared error of [B, HOURS], the hours weighted."""
    importance = torch.linspace(1.0, 0.5, HOURS, dtype=forecast.dtype, device=forecast.device)
    return (importance * (forecast - truth).square()).mean()


def save(model: Forecaster) -> dict[str, Any]:
    """What a file holds: all that the model does not get from the code."""
    return model.state_dict()


def load(model: Forecaster, file: dict[str, Any]) -> None:
    """Read what `save` makes, today or before the blocks were registered."""
    if "blocks" in file:
        blocks = {f"blocks.{i}.{name}": t for i, state in enumerate(file["blocks"]) for name, t in state.items()}
        file = file["model"] | blocks | {name: file[name] for name in ("mean", "std")}
    model.load_state_dict(file)


def days(count: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Made-up batches: readings [16, 48, SENSORS] and what the temperature was then [16, HOURS]."""
    g = torch.Generator().manual_seed(11)
    drawn = [60 + 2 * torch.randn(16, 48 + HOURS, SENSORS, generator=g).cumsum(1) for _ in range(count)]
    return [(d[:, :-HOURS].to(device), (d[:, -HOURS:, 0] / 60 - 1).to(device)) for d in drawn]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or meta: shapes only, no card is needed")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = build({"mean": np.full(SENSORS, 60.0), "std": np.full(SENSORS, 10.0)}).to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step, (readings, truth) in enumerate(days(arguments.steps, torch.device(arguments.device)), 1):
        loss = loss_fn(model(readings), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:3d} on {loss.device}  loss {'-' if loss.is_meta else f'{loss.item():.4f}'}")


if __name__ == "__main__":
    main()
