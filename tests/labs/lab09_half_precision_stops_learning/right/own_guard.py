# right: Scales by hand through a GradScaler that never steps: unscale_ finds what is not finite, a guard decides, update() adapts. Costs a read of the norm at every step.
"""Train the run-off model: from a gauge and a week's readings to the discharge that the gauge will see."""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GAUGES, READINGS, WIDTH = 48, 8, 48


class RunOff(nn.Module):
    """Gauge embedding and readings, two hidden layers, discharge in cubic metres per second."""

    def __init__(self) -> None:
        super().__init__()
        self.gauge = nn.Embedding(GAUGES, 16)
        self.enter = nn.Linear(16 + READINGS, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.leave = nn.Linear(WIDTH, 1)
        nn.init.normal_(self.gauge.weight, std=0.02)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def forward(self, gauges: Tensor, readings: Tensor) -> Tensor:
        x = torch.cat([self.gauge(gauges), readings], dim=-1)
        x = F.gelu(self.hidden(F.gelu(self.enter(x))))
        return self.leave(x).squeeze(-1)


class Trainer:
    """Updates `model` by `optimizer`, one batch at a time; the gradient of all parameters is clipped to `max_norm`."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float, dtype: torch.dtype = torch.float16
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.max_norm, self.dtype = max_norm, dtype
        device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)

    def step(self, gauges: Tensor, readings: Tensor, discharge: Tensor) -> float:
        """One update on the mean squared error of the batch. Returns the loss before the update."""
        with torch.autocast(gauges.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            predicted = self.model(gauges, readings)
        loss = F.mse_loss(predicted.float(), discharge)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        if torch.isfinite(norm):
            self.optimizer.step()
        self.scaler.update()
        return loss.item()


def weeks(count: int, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """`count` batches from the upland brooks: gauges [size], readings [size, 8], discharge [size]."""
    generator = torch.Generator().manual_seed(11)
    catchment = 0.002 * torch.rand(GAUGES, generator=generator)
    for _ in range(count):
        gauges = torch.randint(GAUGES, (size,), generator=generator)
        readings = torch.randn(size, READINGS, generator=generator)
        discharge = catchment[gauges] * (readings[:, 0] + 0.5 * readings[:, 1]).relu()
        yield gauges.to(device), readings.to(device), discharge.to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float16", "float32"], default="float16")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=512)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    model = RunOff().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    trainer = Trainer(model, optimizer, max_norm=1.0, dtype=getattr(torch, arguments.dtype))
    squares = []
    for step, batch in enumerate(weeks(arguments.steps, arguments.batch_size, device), 1):
        squares.append(trainer.step(*batch))
        if step % 30 == 0:
            print(
                f"step {step:4d}  root mean square error {1e3 * (sum(squares[-30:]) / 30) ** 0.5:.3f} litres a second"
            )


if __name__ == "__main__":
    main()
