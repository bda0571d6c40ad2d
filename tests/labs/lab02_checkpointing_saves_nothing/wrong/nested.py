# wrong: test_blocks_run_at_most_once_more
# A checkpoint in each block and one round every two: the inner ones are computed twice again.
"""Train the pump monitor: from one reading of all sensors to the state that the pump is in."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

SENSORS, STATES, RANK = 24, 6, 4


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Meanwhile, BatchNorm normalises by the batch and leaves its running statistics alone."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


class Block(nn.Module):
    """x + down(dropout(gelu(up(norm(x))))) + adapter(norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.up = nn.Linear(width, 4 * width)
        self.dropout = nn.Dropout(0.2)
        self.down = nn.Linear(4 * width, width)
        self.adapter = nn.Sequential(nn.Linear(width, RANK, bias=False), nn.Linear(RANK, width, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        if self.training:
            return x + checkpoint(self.change, h, use_reentrant=False)
        return x + self.change(h)

    def change(self, h: Tensor) -> Tensor:
        """What the block adds; it has no state, so that it may run twice."""
        return self.down(self.dropout(F.gelu(self.up(h)))) + self.adapter(h)


class PumpMonitor(nn.Module):
    """Readings [B, 24] to one logit per state [B, 6]; in training the blocks are computed again during backward."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(SENSORS, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.leave = nn.Linear(width, STATES)

    def forward(self, readings: Tensor) -> Tensor:
        x = self.enter(readings)
        for i in range(0, len(self.blocks), 2):
            pair = self.blocks[i : i + 2]
            again = partial(self.contexts, pair)
            x = checkpoint(pair, x, use_reentrant=False, context_fn=again) if self.training else pair(x)
        return self.leave(x)

    @staticmethod
    def contexts(part: nn.Module):
        """For the first pass and for the second."""
        return nullcontext(), statistics_kept(part)


def build(device: torch.device, width: int = 64, depth: int = 8) -> nn.Module:
    """The model on `device`."""
    return PumpMonitor(width, depth).to(device)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> float:
    """One update on the mean loss of the batch. Returns the loss before the update."""
    readings, states = batch
    loss = F.cross_entropy(model(readings), states)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def pumps(count: int, size: int, site: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """`count` batches of readings [size, 24] and states [size]; each site has pumps that sound differently."""
    generator = torch.Generator().manual_seed(site)
    sound = torch.randn(2, SENSORS, STATES, generator=generator)
    for _ in range(count):
        readings = 3 * torch.randn(size, SENSORS, generator=generator) + 1
        states = ((readings @ sound[0]).tanh() + (readings.abs() @ sound[1]) / 8).argmax(-1)
        yield readings.to(device), states.to(device)


def adapt(model: nn.Module) -> None:
    """Freeze all but the adapters and the last layer."""
    for name, p in model.named_parameters():
        p.requires_grad_("adapter" in name or name.startswith("leave"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--site", type=int, default=7, help="the site that the adapters are trained for afterwards")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=80)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    model = build(device)
    for stage, site in ("from scratch", 0), ("adapters", arguments.site):
        if stage == "adapters":
            adapt(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        before = [p.detach().clone() for p in trained]
        optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
        for step, batch in enumerate(pumps(arguments.steps, arguments.batch_size, site, device), 1):
            loss = train_step(model, optimizer, batch)
            if step % 20 == 0:
                print(f"{stage:12}  step {step:3d}  loss {loss:.3f}")
        changed = sum(not torch.equal(*pair) for pair in zip(trained, before, strict=True))
        print(f"{stage:12}  {changed} of {len(trained)} weights and biases have changed")
    if device.type == "cuda":
        print(f"peak {torch.cuda.max_memory_allocated(device) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
