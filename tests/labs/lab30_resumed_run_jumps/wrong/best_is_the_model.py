# wrong: test_the_best_weights_stay_the_best
# Keeps the state_dict itself as the best weights: its tensors are the model's, so the best is always the last.
"""Train the sorter of parcels on machines that may be taken away at any moment: a run stops, and goes on elsewhere."""

import argparse
import math
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

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
    training: TensorDataset
    validation: DataLoader
    schedule: OneCycleLR
    scaler: torch.amp.GradScaler
    device: torch.device
    step: int = 0
    order: list[int] = field(default_factory=list)  # of all parcels, in this epoch
    lowest: float = math.inf
    best: dict[str, Tensor] = field(default_factory=dict)

    @property
    def per_epoch(self) -> int:
        return math.ceil(len(self.training) / BATCH)


def start(training: TensorDataset, validation: TensorDataset, seed: int, device: torch.device) -> Run:
    """A new run; all its chance follows from `seed`."""
    torch.manual_seed(seed)
    return assemble(training, validation, device)


def assemble(training: TensorDataset, validation: TensorDataset, device: torch.device) -> Run:
    """A run of new parts."""
    layers = (nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2))
    model = nn.Sequential(*layers, nn.Linear(64, KINDS)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    total = EPOCHS * math.ceil(len(training) / BATCH)
    schedule = OneCycleLR(optimizer, RATE, total_steps=total, cycle_momentum=False)
    scaler = torch.amp.GradScaler(device.type, growth_interval=8)
    return Run(model, optimizer, training, DataLoader(validation, BATCH), schedule, scaler, device)


def next_batch(run: Run) -> tuple[Tensor, Tensor]:
    """What to train on in this step: each parcel once per epoch, in an order that is drawn as the epoch begins."""
    place = run.step % run.per_epoch
    if place == 0:
        run.order = torch.randperm(len(run.training)).tolist()
    features, kinds = run.training[run.order[place * BATCH : (place + 1) * BATCH]]
    return features.to(run.device), kinds.to(run.device)


def train(run: Run, steps: int) -> list[float]:
    """Train on so many batches more; the loss of each."""
    losses = []
    for _ in range(steps):
        features, kinds = next_batch(run)
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
        if run.step % run.per_epoch == 0:
            validate(run)
    return losses


@torch.no_grad()
def validate(run: Run) -> None:
    """Keep a copy of the weights, if none before had a lower loss."""
    run.model.eval()
    batches = [(features.to(run.device), kinds.to(run.device)) for features, kinds in run.validation]
    losses = [F.cross_entropy(run.model(features), kinds).item() for features, kinds in batches]
    loss = sum(losses) / len(losses)  # a plain number: NumPy's would be an object of a class that loading refuses
    if loss < run.lowest:
        run.lowest = loss
        run.best = run.model.state_dict()


PARTS = ("model", "optimizer", "schedule", "scaler")
PLAIN = ("step", "order", "lowest", "best")


def save(run: Run, path: str | Path) -> None:
    """Write the run to `path`; whoever looks there, and whenever, finds one whole checkpoint, this one or the last."""
    state = {name: getattr(run, name).state_dict() for name in PARTS} | {name: getattr(run, name) for name in PLAIN}
    state["random"] = torch.get_rng_state()
    if run.device.type == "cuda":  # dropout draws there; not run on a GPU
        state["random on the card"] = torch.cuda.get_rng_state(run.device)
    beside = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave the new name on an empty file
        os.replace(beside, path)  # one step, as both are in one folder
    finally:
        beside.unlink(missing_ok=True)


def resume(path: str | Path, training: TensorDataset, validation: TensorDataset, device: torch.device) -> Run:
    """The run that was saved to `path`, on `device`, wherever it ran before."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    run = assemble(training, validation, device)  # all parts, before any is loaded: a new schedule sets the rate
    for name in PARTS:
        getattr(run, name).load_state_dict(state[name])
    for name in PLAIN:
        setattr(run, name, state[name])
    run.best = {name: value.to(device) for name, value in run.best.items()}
    torch.set_rng_state(state["random"])
    if device.type == "cuda" and "random on the card" in state:
        torch.cuda.set_rng_state(state["random on the card"], device)
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
