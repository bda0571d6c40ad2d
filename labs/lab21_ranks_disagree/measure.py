"""Measure lab21: train on one, two and three ranks that announce each collective first, and see who did what."""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from breakfix.contract import describe, expect, expect_tensors, function
from breakfix.probes import collectives, traffic
from breakfix.ranks import run_ranks

CHANNELS, CONDITIONS, SAMPLES, KERNEL = 6, 4, 24, 5
BATCH, EPOCHS = 4, 3
RATE, MOMENTUM = 0.05, 0.9
WAIT_S = 10.0  # never waited for: ranks that part are told at once
CHECKPOINT = "last.pt"
STATE_KEPT = "with the parameters and buffers of the model as they were, by name and shape"
LAST = 8  # collectives that the figure shows


@dataclass(frozen=True)
class Regime:
    """How many ranks there are, and how many recordings to train and to validate on."""

    world: int
    training: int
    validation: int


REGIMES = {
    "one": Regime(1, 22, 13),
    "even": Regime(2, 40, 24),
    "two": Regime(2, 41, 25),  # halves of 21 and 20: of six batches and of five
    "short": Regime(2, 39, 25),  # halves of 20 and 19: of five whole batches and of four
    "three": Regime(3, 40, 26),  # thirds of 14, 14 and 12: of four, four and three
}


@dataclass(frozen=True)
class Inputs:
    """All that is secret: the initial state, and the recordings of each regime."""

    state: dict[str, Tensor]
    training: dict[str, TensorDataset]
    validation: dict[str, TensorDataset]


def inputs(seed: int) -> Inputs:
    """Everything secret, drawn from `seed`."""
    g = torch.Generator().manual_seed(seed)
    state = {name: _initial(name, value, g) for name, value in Bearings().state_dict().items()}
    training = {name: _recordings(regime.training, g) for name, regime in REGIMES.items()}
    validation = {name: _recordings(regime.validation, g) for name, regime in REGIMES.items()}
    return Inputs(state, training, validation)


def _initial(name: str, value: Tensor, g: torch.Generator) -> Tensor:
    if not value.is_floating_point():
        return value
    drawn = torch.randn(value.shape, generator=g)
    return 1 + 0.1 * drawn.abs() if name in ("norm.weight", "norm.running_var") else 0.3 * drawn


def _recordings(count: int, g: torch.Generator) -> TensorDataset:
    """Recordings of two benches, one bench after the other, which differ in offset and in scale."""
    condition = torch.randint(CONDITIONS, (count,), generator=g)
    bench = (torch.arange(count) >= count // 2).float().unsqueeze(1)
    wave = torch.sin(
        torch.arange(SAMPLES) * (0.3 + 0.5 * condition).unsqueeze(1) + 6.3 * torch.rand(count, 1, generator=g)
    )
    vibration = (wave + torch.randn(count, SAMPLES, generator=g)) * (1 + bench) + 2 * bench
    return TensorDataset(vibration.unsqueeze(1), condition)


# ----------------------------------------------------------------------------------------------------------- the model


@dataclass
class Seen:
    """What the model of this rank was trained on: recordings by their place in the dataset, -1 for anything else."""

    places: dict[float, int]  # by a recording's first sample
    trained: list[list[int]] = field(default_factory=list)  # one list per forward with a gradient

    def forward(self, vibration: Tensor, logits: Tensor) -> None:
        if logits.requires_grad:
            self.trained.append([self.places.get(first, -1) for first in vibration[:, 0, 0].tolist()])


class Bearings(nn.Module):
    """The reference architecture."""

    def __init__(self, seen: Seen | None = None) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, CHANNELS, KERNEL), nn.BatchNorm1d(CHANNELS)
        self.head = nn.Linear(CHANNELS, CONDITIONS)
        self.seen = seen

    def forward(self, vibration: Tensor) -> Tensor:
        logits = self.head(torch.relu(self.norm(self.conv(vibration))).mean(-1))
        if self.seen:
            self.seen.forward(vibration, logits)
        return logits


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)


# ----------------------------------------------------------------------------------------------------------- measuring


def measure(subject: ModuleType, seed: int, device: torch.device) -> dict[str, Any]:
    """Per regime: calls, recordings, history, weights, buffers and files of every rank."""
    stub = "train(model, optimizer, training, validation, epochs, batch, out) -> list[dict[str, float]]"
    train = function(subject, stub)
    given = inputs(seed)
    evidence: dict[str, Any] = {}
    for name, regime in REGIMES.items():
        trace = collectives.trace(_backends(device, regime.world), wait_s=WAIT_S)

        def work(rank: int, world: int, name=name, trace=trace) -> dict[str, Any]:
            with tempfile.TemporaryDirectory() as folder:
                here = Rank(train, given, name, trace, _device_of(rank, world, device), Path(folder))
                return here.run()

        ranks = run_ranks(work, regime.world, backend=collectives.BACKEND, timeout_s=20)
        evidence |= {f"{name}.{key}": _together([rank[key] for rank in ranks]) for key in ranks[0]}
    return evidence | _summary(evidence)


def _backends(device: torch.device, world: int) -> dict[str, str]:
    """NCCL where each rank can have a GPU of its own; it refuses to share one, so there gloo carries CUDA tensors.

    The ranks are forked before this process has used CUDA: the number of GPUs comes from NVML. Not run on a GPU yet.
    """
    if device.type == "cpu":
        return {"cpu": "gloo"}
    return {"cpu": "gloo", "cuda": "nccl" if torch.cuda.device_count() >= world else "gloo"}


def _device_of(rank: int, world: int, device: torch.device) -> torch.device:
    if device.type == "cpu":
        return device
    device = torch.device("cuda", rank if torch.cuda.device_count() >= world else 0)
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return device


@dataclass
class Rank:
    """One rank of one regime: runs the subject's function and keeps what it saw."""

    train: Callable
    given: Inputs
    name: str
    trace: collectives.Trace
    device: torch.device
    folder: Path

    def run(self) -> dict[str, Any]:
        recordings = self.given.training[self.name].tensors[0]
        seen = Seen({first: place for place, first in enumerate(recordings[:, 0, 0].tolist())})
        model = Bearings(seen)
        model.load_state_dict(self.given.state)
        history = self.history(model.to(self.device))
        expect_tensors(_shapes(model.state_dict()), _shapes(self.given.state), "train", wanted=STATE_KEPT)
        return {
            "history": history,
            "parted": str(self.trace.parted or ""),
            "calls": [str(call) for call in self.trace.calls],
            "numbers": [sum(map(math.prod, call.shapes)) for call in self.trace.calls],
            "unrecorded": self.unrecorded(),
            "trained": seen.trained,
            "state": vector(model.state_dict()),
            "files": sorted(str(f.relative_to(self.folder)) for f in self.folder.rglob("*") if f.is_file()),
            **self.checkpoint(),
        }

    def history(self, model: nn.Module) -> np.ndarray:
        """[epochs, 2] of loss and validation loss; nan where the ranks have parted."""
        training, validation = self.given.training[self.name], self.given.validation[self.name]
        try:
            with self.trace:
                history = self.train(model, optimizer_of(model), training, validation, EPOCHS, BATCH, self.folder)
        except Exception as error:
            if not _comes_of_parting(error):
                raise
            return np.full((EPOCHS, 2), np.nan)
        fits = isinstance(history, list) and len(history) == EPOCHS and all(map(_is_entry, history))
        expect(
            fits, "train", wanted=f'{EPOCHS} times {{"loss": float, "validation_loss": float}}', got=describe(history)
        )
        return np.array([[float(h["loss"]), float(h["validation_loss"])] for h in history])

    def unrecorded(self) -> str:
        """Where the traced group and PyTorch's Flight Recorder differ; the call at which ranks part is never run."""
        run = self.trace.calls[:-1] if self.trace.parted else self.trace.calls
        return traffic.disagreement(run, collectives.recorded())

    def checkpoint(self) -> dict[str, Any]:
        """The names in this rank's checkpoint, its epoch, and its values if the names are right."""
        if not (self.folder / CHECKPOINT).is_file():
            return {"saved.names": [], "saved.epoch": -1, "saved.state": np.zeros(STATE, np.float32)}
        found = torch.load(self.folder / CHECKPOINT, map_location="cpu", weights_only=True)
        fits = isinstance(found, dict) and isinstance(found.get("model"), dict) and "epoch" in found
        expect(fits, "train", wanted=f'{CHECKPOINT} to hold {{"epoch": int, "model": state_dict}}', got=describe(found))
        names, state = sorted(found["model"]), np.zeros(STATE, np.float32)
        if names == sorted(self.given.state):
            state = vector(found["model"])
        return {"saved.names": names, "saved.epoch": int(found["epoch"]), "saved.state": state}


def _shapes(state: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in state.items()}


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and {"loss", "validation_loss"} <= entry.keys()


def _together(values: list[Any]) -> Any:
    return np.stack(values) if isinstance(values[0], np.ndarray) else values


def _comes_of_parting(error: BaseException | None) -> bool:
    """Whether this exception, or one that it was raised from, says that ranks part."""
    while error is not None:
        if isinstance(error, collectives.RanksPart):
            return True
        error = error.__cause__ or error.__context__
    return False


def vector(state: dict[str, Tensor]) -> np.ndarray:
    """All floating values of a state, one after the other, by name."""
    values = (state[name] for name in sorted(state))
    return torch.cat([v.detach().float().cpu().ravel() for v in values if v.is_floating_point()]).numpy()


STATE = sum(v.numel() for v in Bearings().state_dict().values() if v.is_floating_point())


def _summary(evidence: dict[str, Any]) -> dict[str, Any]:
    """For people, for the figure and for the predictions."""
    summary: dict[str, Any] = {}
    for name in REGIMES:
        steps = [len(trained) for trained in evidence[f"{name}.trained"]]
        summary |= {
            f"{name}.to_the_end": "no" if evidence[f"{name}.parted"][0] else "yes",
            f"{name}.collectives": len(evidence[f"{name}.calls"][0]),
            f"{name}.steps_of_rank_0": steps[0],
            f"{name}.steps_of_last_rank": steps[-1],
            f"{name}.writers": sum(bool(files) for files in evidence[f"{name}.files"]),
        }
    longest = max(map(len, evidence["three.numbers"]))
    padded = [numbers + [0] * (longest - len(numbers)) for numbers in evidence["three.numbers"]]
    return summary | {"last_collectives": np.array(padded)[:, -LAST:]}
