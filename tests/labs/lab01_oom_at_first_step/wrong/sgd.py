# wrong: test_little_is_alive_beside_what_must_stay test_losses_equal_the_reference test_updates_equal_the_reference
# SGD with momentum instead of AdamW: one state less, the same temporary of 1 P, and another training run.
"""Train the next-item model: from the item that a customer looks at to the one that is bought next."""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ITEMS = 1024
HEADROOM = 1.15  # activations, a share of the rest: the batches are small


class Residual(nn.Module):
    """x + down(gelu(up(norm(x))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class NextItem(nn.Module):
    """Item embedding, residual blocks, one logit per item of the catalogue."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ITEMS, width)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.head = nn.Linear(width, ITEMS)

    def forward(self, items: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(items)))


def build(device: torch.device, width: int = 160, depth: int = 6) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model on `device`, and its optimizer."""
    model = NextItem(width, depth).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=3e-4, momentum=0.9, weight_decay=0.1)


def train_step(model: nn.Module, state: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> float:
    """One update on the mean loss of the batch, with the gradient clipped to norm 1. Returns the loss."""
    items, bought = batch
    loss = F.cross_entropy(model(items), bought)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    state.step()
    state.zero_grad()
    return loss.item()


def reservation(model: nn.Module) -> int:
    """Bytes to ask the cluster for: weights, gradients, and the two averages that AdamW keeps for every weight."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return int(HEADROOM * (weights + weights + 2 * weights))


def sessions(batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of what was looked at and what was bought."""
    generator = torch.Generator().manual_seed(11)
    while True:
        items = torch.randint(ITEMS, (batch_size,), generator=generator)
        yield items.to(device), ((items * 7 + 3) % ITEMS).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    model, state = build(device, arguments.width, arguments.depth)
    reserved = reservation(model)
    enforced = device.type == "cuda"
    if enforced:  # other jobs have the rest of the card
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, reserved / total), device)
    print(
        f"reserved {reserved / 2**20:.1f} MiB on {device}{'' if enforced else ' (a reservation binds on a GPU only)'}"
    )
    batches = sessions(arguments.batch_size, device)
    for step in range(arguments.steps):
        print(f"step {step:3d}  loss={train_step(model, state, next(batches)):.4f}")


if __name__ == "__main__":
    main()
