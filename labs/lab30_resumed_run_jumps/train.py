"""Train the sorter of parcels on machines that may be taken away at any moment: a run stops, and goes on elsewhere."""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, RATE, KINDS, FEATURES = 6, 16, 1e-2, 5, 12


@dataclass
class Run:
    """A run of training."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: DataLoader
    validation: DataLoader
    schedule: OneCycleLR
    scaler: torch.amp.GradScaler
    device: torch.device
    batches: Iterator | None = None
    step: int = 0
    lowest: float = np.inf
    best: dict[str, Tensor] = field(default_factory=dict)


def start(training: TensorDataset, validation: TensorDataset, seed: int, device: torch.device) -> Run:
    """A new run; all its chance follows from `seed`."""
    torch.manual_seed(seed)
    layers = (nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2))
    model = nn.Sequential(*layers, nn.Linear(64, KINDS)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    loader = DataLoader(training, BATCH, shuffle=True)
    schedule = OneCycleLR(optimizer, RATE, total_steps=EPOCHS * len(loader), cycle_momentum=False)
    scaler = torch.amp.GradScaler(device.type, growth_interval=8)
    return Run(model, optimizer, loader, DataLoader(validation, BATCH), schedule, scaler, device)


def train(run: Run, steps: int) -> list[float]:
    """Train on so many batches more; the loss of each."""
    losses = []
    for _ in range(steps):
        if run.batches is None or run.step % len(run.loader) == 0:
            run.batches = iter(run.loader)
        features, kinds = (tensor.to(run.device) for tensor in next(run.batches))
        run.model.train()
        with torch.autocast(run.device.type, torch.float16):
            loss = F.cross_entropy(run.model(features), kinds)
        run.optimizer.zero_grad()
        run.scaler.scale(loss).backward()
        run.scaler.step(run.optimizer)
        run.scaler.update()
        run.schedule.step()
        run.step += 1
        losses.append(loss.item())
        if run.step % len(run.loader) == 0:
            validate(run)
    return losses


@torch.no_grad()
def validate(run: Run) -> None:
    """Keep the weights, if none before had a lower loss."""
    run.model.eval()
    batches = [(features.to(run.device), kinds.to(run.device)) for features, kinds in run.validation]
    loss = np.mean([F.cross_entropy(run.model(features), kinds).item() for features, kinds in batches])
    if loss < run.lowest:
        run.lowest, run.best = loss, run.model.state_dict()


def save(run: Run, path: str | Path) -> None:
    """Write the run to `path`."""
    state = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict(), "best": run.best}
    torch.save(state | {"epoch": run.step // len(run.loader), "lowest": run.lowest}, path)


def resume(path: str | Path, training: TensorDataset, validation: TensorDataset, device: torch.device) -> Run:
    """The run that was saved to `path`, on `device`."""
    state, run = torch.load(path, weights_only=False), start(training, validation, 0, device)
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    total, epoch = EPOCHS * len(run.loader), state["epoch"]
    run.schedule = OneCycleLR(run.optimizer, RATE, total, cycle_momentum=False, last_epoch=epoch)
    run.step, run.lowest, run.best = epoch * len(run.loader), state["lowest"], state["best"]
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stop", type=int, default=17, help="the batch after which the second run is stopped")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device, generator = torch.device(arguments.device), torch.Generator().manual_seed(30)
    features = torch.randn(200, FEATURES, generator=generator)
    kinds = (features[:, :KINDS] + 0.5 * torch.randn(200, KINDS, generator=generator)).argmax(dim=1)
    data = TensorDataset(features[:104], kinds[:104]), TensorDataset(features[104:], kinds[104:])
    losses = train(whole := start(*data, 1, device), 42)
    train(stopped := start(*data, 1, device), arguments.stop)
    with tempfile.TemporaryDirectory() as folder:
        save(stopped, Path(folder, "run.pt"))
        torch.seed()  # as in another process
        resumed = resume(Path(folder, "run.pt"), *data, device)
    later = train(resumed, 42 - arguments.stop)
    for at in range(arguments.stop, 42, 4):
        print(f"batch {at + 1}: loss {losses[at]:.4f}; of the run that was stopped {later[at - arguments.stop]:.4f}")
    a, b = (torch.nn.utils.parameters_to_vector(run.model.parameters()) for run in (whole, resumed))
    print(f"weights at the end, relative distance: {((a - b).norm() / a.norm()).item():.4f}")


if __name__ == "__main__":
    main()
