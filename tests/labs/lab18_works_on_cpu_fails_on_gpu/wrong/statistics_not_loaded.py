# wrong: test_all_that_is_learned_is_known test_values_are_right
# The model was built with statistics already: strict=False, and those of the file are dropped; it forecasts by the wrong ones.
"""Train the forecaster of a wind turbine's bearing temperature: six hours ahead, from readings of the last days."""

import argparse
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SENSORS, WIDTH, HEADS, DEPTH, LONGEST, HOURS = 6, 32, 4, 2, 128, 6
IMPORTANCE = torch.from_numpy(np.linspace(1.0, 0.5, HOURS))  # the next hour counts most


def decays() -> Tensor:
    """[HEADS, LONGEST, LONGEST]: the longer ago a reading is, the less it counts, each head at a rate of its own."""
    ago = torch.arange(LONGEST).unsqueeze(1) - torch.arange(LONGEST)
    rates = 0.5 ** torch.arange(1, HEADS + 1).float()
    return -rates.view(-1, 1, 1) * ago.clamp(min=0)


class Block(nn.Module):
    """Self-attention over the readings so far, then a small network for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attend, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor, decay: Tensor) -> Tensor:
        batch, steps, _ = x.shape
        q, k, v = self.attend(self.norm(x)).view(batch, steps, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        later = torch.ones(steps, steps, dtype=torch.bool, device=x.device).triu(1)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 + decay
        found = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        x = x + self.mix(found.transpose(1, 2).reshape(batch, steps, WIDTH))
        return x + self.feed(x)


class Forecaster(nn.Module):
    """Readings [B, T, SENSORS] to the temperature of the next HOURS hours [B, HOURS]."""

    def __init__(self, statistics: dict[str, np.ndarray]) -> None:
        super().__init__()
        for name in ("mean", "std"):
            self.register_buffer(name, torch.from_numpy(statistics[name]).float())
        self.register_buffer("decay", decays(), persistent=False)
        self.enter, self.leave = nn.Linear(SENSORS, WIDTH), nn.Linear(WIDTH, HOURS)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))

    def forward(self, readings: Tensor) -> Tensor:
        steps = readings.shape[1]
        x = self.enter((readings.to(self.mean.dtype) - self.mean) / self.std)
        for block in self.blocks:
            x = block(x, self.decay[:, :steps, :steps])
        return self.leave(x[:, -1])


def build(statistics: dict[str, np.ndarray]) -> Forecaster:
    return Forecaster(statistics)


def loss_fn(forecast: Tensor, truth: Tensor) -> Tensor:
    """Mean squared error of [B, HOURS], the hours weighted."""
    return (
        torch.linspace(1.0, 0.5, HOURS, device=forecast.device, dtype=forecast.dtype) * (forecast - truth).square()
    ).mean()


def learned(model: Forecaster) -> list[Tensor]:
    return list(model.parameters())


def save(model: Forecaster) -> dict[str, Any]:
    """What a file holds; see load."""
    blocks = [block.state_dict() for block in model.blocks]
    return {"model": model.state_dict(), "blocks": blocks, "mean": model.mean, "std": model.std}


def load(model: Forecaster, file: dict[str, Any]) -> None:
    state = dict(file["model"])
    for i, block in enumerate(file["blocks"]):
        state |= {f"blocks.{i}.{k}": v for k, v in block.items()}
    model.load_state_dict(state, strict=False)


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
    optimizer = torch.optim.AdamW(learned(model), lr=3e-3)
    for step, (readings, truth) in enumerate(days(arguments.steps, torch.device(arguments.device)), 1):
        loss = loss_fn(model(readings), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:3d} on {loss.device}  loss {'-' if loss.is_meta else f'{loss.item():.4f}'}")


if __name__ == "__main__":
    main()
