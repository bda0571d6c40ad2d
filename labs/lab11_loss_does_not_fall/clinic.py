"""The clinic of the training platform: jobs whose loss does not fall come in, and leave with a cause and a repair."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CAUSES = (
    "healthy", "broadcast_loss", "dead_units", "equal_units", "exploding_gradients", "learning_rate",
    "misaligned_targets", "softmax_twice", "stale_optimizer", "unregistered_layers", "vanishing_gradients",
)  # fmt: skip


@dataclass
class Trainer:
    """A job: what the platform trains, and on what."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> mean over the batch
    inputs: Tensor
    targets: Tensor
    batch_size: int
    epochs: int
    max_norm: float | None = None


def train(trainer: Trainer, epochs: int) -> list[float]:
    """So many passes over the data, in order. The loss of each batch."""
    losses = []
    trainer.model.train()
    for _ in range(epochs):
        batches = (t.split(trainer.batch_size) for t in (trainer.inputs, trainer.targets))
        for x, y in zip(*batches, strict=True):
            loss = trainer.loss_fn(trainer.model(x), y)
            trainer.optimizer.zero_grad()
            loss.backward()
            if trainer.max_norm is not None:
                nn.utils.clip_grad_norm_(trainer.model.parameters(), trainer.max_norm)
            trainer.optimizer.step()
            losses.append(loss.item())
    return losses


def diagnose(trainer: Trainer) -> str:
    """The cause, out of CAUSES, by what the loss does in two passes."""
    losses = train(trainer, 2)
    if not all(math.isfinite(loss) for loss in losses):
        return "exploding_gradients"
    if losses[-1] > 0.9 * losses[0]:
        return "learning_rate"
    return "healthy"


def repair(trainer: Trainer, cause: str) -> Trainer:
    """Steps of ten times the length; where gradients are the trouble, their norm is clipped."""
    if cause in ("exploding_gradients", "vanishing_gradients"):
        trainer.max_norm = 1.0
    elif cause != "healthy":
        for group in trainer.optimizer.param_groups:
            group["lr"] *= 10
    return trainer


class Tower(nn.Module):
    """Features [B, 10] to the logits of five kinds."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(10, width)
        self.layers = [nn.Linear(width, width) for _ in range(depth)]
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x).relu()
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def admitted() -> dict[str, Trainer]:
    """Last night's jobs, on made-up data."""
    g = torch.Generator().manual_seed(11)
    x = torch.randn(512, 10, generator=g)
    kinds, level = x[:, :5].argmax(dim=1), x[:, :1].tanh() + 0.5 * x[:, 1:2]
    mixed = torch.where(torch.rand(512, generator=g) < 0.6, torch.randint(5, (512,), generator=g), kinds)
    layers = [nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
    jobs = {
        "parcels": (Tower(32, 2), F.cross_entropy, kinds),
        "orchard": (nn.Sequential(*copy.deepcopy(layers), nn.Linear(32, 5), nn.Softmax(dim=1)), F.cross_entropy, kinds),
        "reservoir": (nn.Sequential(*copy.deepcopy(layers), nn.Linear(32, 1)), squared_error, level[:, 0]),
        "tramways": (nn.Sequential(*layers, nn.Linear(32, 5)), F.cross_entropy, mixed),
    }
    made = {}
    for name, (model, loss_fn, targets) in jobs.items():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        made[name] = Trainer(model, optimizer, loss_fn, x, targets, batch_size=64, epochs=15)
    return made


def main() -> None:
    torch.manual_seed(0)
    for name, trainer in admitted().items():
        untreated = train(copy.deepcopy(trainer), trainer.epochs)[-8:]
        cause = diagnose(trainer)
        repaired = train(repair(trainer, cause), trainer.epochs)[-8:]
        print(f"{name:10} loss {sum(untreated) / 8:.3f}   {cause:20} after repair {sum(repaired) / 8:.3f}")


if __name__ == "__main__":
    main()
