"""Measure lab02: the same training with and without it; bytes at the peak, products computed, and what was learned."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from breakfix.contract import describe, expect, expect_tensors, function
from breakfix.probes.flops import flop_counter
from breakfix.probes.memory import Card

SENSORS, STATES, RANK, DROPOUT, STEPS, RATE = 24, 6, 4, 0.2, 2, 0.1
HALF = 0.5

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Regime:
    """Sizes of a model and of its batches, and what is trained: the parameters with one of these in their names."""

    width: int
    depth: int
    batch: int
    trained: tuple[str, ...] = ("",)


REGIMES = {
    "scratch": Regime(64, 8, 512),
    "adapters": Regime(48, 10, 640, ("adapter", "leave")),
}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.up = nn.Linear(width, 4 * width)
        self.dropout = nn.Dropout(DROPOUT)
        self.down = nn.Linear(4 * width, width)
        self.adapter = nn.Sequential(nn.Linear(width, RANK, bias=False), nn.Linear(RANK, width, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.down(self.dropout(F.gelu(self.up(h)))) + self.adapter(h)


class PumpMonitor(nn.Module):
    """The reference architecture, which keeps everything for backward."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(SENSORS, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.leave = nn.Linear(width, STATES)

    def forward(self, readings: Tensor) -> Tensor:
        return self.leave(self.blocks(self.enter(readings)))


def reference(regime: Regime, seed: int, device: torch.device) -> nn.Module:
    """The reference model with the seed's weights, frozen as the regime wants it, in training mode."""
    model = PumpMonitor(regime.width, regime.depth).to(device)
    prepare(model, regime, seed)
    return model


def reference_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    loss = F.cross_entropy(model(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def inputs(seed: int) -> dict:
    """The seed of weights and dropout; by regime the batches to train on, and readings to predict from afterwards."""
    g, drawn = torch.Generator().manual_seed(seed), {}
    for name, regime in REGIMES.items():
        batches = [_batch(regime.batch, g) for _ in range(STEPS)]
        drawn[name] = {"batches": batches, "fresh": _batch(64, g)[0]}
    return {"seed": seed, **drawn}


def _batch(size: int, g: torch.Generator) -> Batch:
    return 2 * torch.randn(size, SENSORS, generator=g) + 1, torch.randint(STATES, (size,), generator=g)


@torch.no_grad()
def prepare(model: nn.Module, regime: Regime, seed: int) -> None:
    """Write the seed's weights and fresh statistics into the model's own tensors, freeze, and turn to training."""
    g = torch.Generator().manual_seed(seed + 1)
    for name, p in sorted(model.named_parameters()):
        scale = p.shape[-1] ** -0.5 if p.ndim == 2 else 0.1
        p.copy_(scale * torch.randn(p.shape, generator=g) + name.endswith("norm.weight"))
        p.requires_grad_(any(part in name for part in regime.trained))
    for name, buffer in model.named_buffers():
        buffer.fill_(float(name.endswith("running_var")))
    model.train()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """One float32 vector of all the tensors."""
    return torch.cat([t.detach().reshape(-1).float().cpu() for t in tensors])


def statistics(model: nn.Module) -> Tensor:
    """Running means and variances, in the order of their names."""
    found = sorted(model.named_buffers())
    return flat(b for name, b in found if name.endswith(("running_mean", "running_var")))


def train(model: nn.Module, step, regime: str, drawn: dict, device: torch.device) -> dict:
    """STEPS updates from one state of the generator: what they needed, and what they did to the model."""
    torch.manual_seed(drawn["seed"] + 2)
    batches = [(x.to(device), y.to(device)) for x, y in drawn[regime]["batches"]]
    losses, counted, optimizer = [], [], sgd(model)
    seen = Gradients(model, optimizer)
    with Card(device) as card:
        card.add(model, *(t for batch in batches for t in batch))
        for batch in batches:
            losses.append(step(model, optimizer, batch))
            card.end_step()
            counted.append(statistics(model))
    return {
        "losses": torch.tensor(losses, dtype=torch.float64),
        "gradients": seen.gradients,
        "trained": sorted(seen.names),
        "left_training": all(m.training for m in model.modules()),
        "peak": card.peak.bytes,
        "peak_at": str(card.peak),
        "timeline": torch.tensor(list(card.timeline), dtype=torch.float32),
        "statistics": torch.stack(counted),
        "predicted": _predict(model, drawn[regime]["fresh"].to(device)),
    }


class Gradients:
    """The gradients as the optimizer gets them, step by step; copied to NumPy, which a card does not count."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.parameters, self.names, self.steps = sorted(model.named_parameters()), set(), []
        optimizer.register_step_pre_hook(self._look)

    def _look(self, optimizer, args, kwargs) -> None:
        self.names |= {name for name, p in self.parameters if p.grad is not None}
        self.steps.append(np.concatenate([_copy(p) for _, p in self.parameters]))

    @property
    def gradients(self) -> np.ndarray:
        """[steps, elements] float32, parameters in the order of their names; zeros for one without a gradient."""
        return np.stack(self.steps) if self.steps else np.zeros((0, 0), dtype=np.float32)


def _copy(p: nn.Parameter) -> np.ndarray:
    if p.grad is None:
        return np.zeros(p.numel(), dtype=np.float32)
    return p.grad.detach().cpu().numpy().astype(np.float32).reshape(-1)


def by_name(vector: np.ndarray, regime: Regime) -> dict[str, np.ndarray]:
    """The parts of one step's gradients that belong to each parameter."""
    named = sorted(PumpMonitor(regime.width, regime.depth).named_parameters())
    ends = np.cumsum([p.numel() for _, p in named])
    return dict(zip((name for name, _ in named), np.split(vector, ends[:-1]), strict=True))


@torch.no_grad()
def _predict(model: nn.Module, readings: Tensor) -> Tensor:
    model.eval()
    logits = model(readings)
    model.train()
    expect(isinstance(logits, Tensor), "model", wanted="the logits", got=describe(logits))
    return logits.float().cpu()


def products(run) -> int:
    """Floating-point operations of the matrix products while `run()` runs, forward and backward."""
    with flop_counter() as counter:
        run()
    return counter.get_total_flops()


def plain_products(regime: Regime, wrap=lambda model: None) -> tuple[int, int]:
    """Those of forward, and of forward and backward, of the plain model; eight rows are counted, as all cost alike."""
    model = reference(regime, 0, torch.device("cpu"))
    wrap(model)
    readings, rows = torch.zeros(8, SENSORS), regime.batch // 8
    forward = products(lambda: model(readings))
    return rows * forward, rows * products(lambda: model(readings).sum().backward())


def step_products(model: nn.Module, step, regime: str, drawn: dict, device: torch.device) -> int:
    """Those of one more update of the subject's."""
    batch = tuple(t.to(device) for t in drawn[regime]["batches"][0])
    optimizer = sgd(model)
    return products(lambda: step(model, optimizer, batch))


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build(device, width, depth) -> nn.Module")
    train_step = function(subject, "train_step(model, optimizer, batch) -> float")
    drawn, evidence = inputs(seed), {"half": HALF, "linears.again": _each_linear_again()}
    for name, regime in REGIMES.items():
        plain = train(reference(regime, seed, device), reference_step, name, drawn, device)
        model = _built(build, regime, seed, device)
        found = train(model, _checked(train_step), name, drawn, device)
        found["products"] = step_products(model, _checked(train_step), name, drawn, device)
        evidence |= {f"{name}.{key}": value for key, value in (found | _against(plain, found, regime)).items()}
    return evidence


def _against(plain: dict, found: dict, regime: Regime) -> dict:
    """Peak and timelines in units of the plain peak, and how much of forward was computed again; to be shown."""
    forward, step = plain_products(regime)
    unit = torch.tensor([1.0, plain["peak"]])
    return {
        "share": found["peak"] / plain["peak"],
        "again": (found["products"] - step) / forward,
        "timeline": found["timeline"] / unit,
        "plain_timeline": plain["timeline"] / unit,
    }


def _checked(train_step):
    """train_step, with its promise to return a float."""

    def step(model, optimizer, batch) -> float:
        loss = train_step(model, optimizer, batch)
        expect(isinstance(loss, float | int), "train_step", wanted="the loss as a float", got=describe(loss))
        return float(loss)

    return step


def _built(build, regime: Regime, seed: int, device: torch.device) -> nn.Module:
    """The subject's model with the seed's weights. Raises Contract."""
    model = build(device, regime.width, regime.depth)
    expect(isinstance(model, nn.Module), "build", wanted="an nn.Module", got=describe(model))
    wanted, found = _tensors(PumpMonitor(regime.width, regime.depth)), _tensors(model)
    says = "a model with the parameters and buffers of today, by name, shape and dtype"
    expect_tensors(found, wanted, "build", says)
    prepare(model, regime, seed)
    return model


def _tensors(model: nn.Module) -> dict[str, str]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for name, t in named}


def _each_linear_again() -> float:
    """How much of forward is computed again where every linear layer has a checkpoint of its own."""
    regime = REGIMES["scratch"]
    (forward, plain), (_, wrapped) = plain_products(regime), plain_products(regime, _wrap_each_linear)
    return (wrapped - plain) / forward


def _wrap_each_linear(model: nn.Module) -> None:
    for layer in (m for m in model.modules() if isinstance(m, nn.Linear)):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
