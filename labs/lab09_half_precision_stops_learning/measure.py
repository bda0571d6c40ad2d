"""Measure lab09: one trainer per regime, batch after batch; what its optimizer gets, and how far the weights move."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from breakfix.contract import describe, expect, function
from breakfix.probes.gradients import Gradients

GAUGES, READINGS, EMBEDDED, WIDTH, BATCH = 32, 8, 8, 32, 512
LAYERS = ("gauge", "enter", "hidden", "leave")
NEVER = 1e3  # a bound that only a flood reaches
STUCK = 0.05  # a layer stands still if a smaller share of its elements than this changes in a step


@dataclass(frozen=True)
class Regime:
    """A stream of batches: how large discharge is in each, the learning rates, and what else is the matter."""

    discharge: tuple[float, ...]  # cubic metres per second, batch by batch
    lr: float  # of the last layer
    body_lr: float  # of all others, whose gradients are smaller
    max_norm: float = NEVER
    fused: bool = False
    spoiled: tuple[int, ...] = ()  # batches in which a gauge reports nonsense

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Plain gradient descent in two groups."""
        last = list(model.leave.parameters())
        body = [p for p in model.parameters() if all(p is not other for other in last)]
        groups = [{"params": body, "lr": self.body_lr}, {"params": last, "lr": self.lr}]
        return torch.optim.SGD(groups, fused=self.fused)


REGIMES = {
    "brook": Regime((1e-3, 2e-3, 1e-3, 2e-3), lr=0.05, body_lr=500.0),
    "river": Regime((0.1, 0.2, 0.05, 0.1), lr=0.05, body_lr=0.5),
    "clipped": Regime((0.02, 0.2, 0.05, 0.4, 0.1), lr=0.2, body_lr=2.0, max_norm=0.1),
    "fused": Regime((2e-3, 1e-3, 4e-3, 1e-3), lr=0.05, body_lr=500.0, max_norm=2e-3, fused=True),
    "spoiled": Regime((0.1, 0.1, 0.2, 0.1, 0.2), lr=0.05, body_lr=0.5, spoiled=(1, 3)),
    "flood": Regime((100.0,) * 24, lr=2e-5, body_lr=2e-5),
}


class RunOff(nn.Module):
    """The reference architecture, in the dtype of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gauge = nn.Embedding(GAUGES, EMBEDDED)
        self.enter = nn.Linear(EMBEDDED + READINGS, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.leave = nn.Linear(WIDTH, 1)

    def forward(self, gauges: Tensor, readings: Tensor) -> Tensor:
        x = torch.cat([self.gauge(gauges), readings], dim=-1)
        return self.leave(F.gelu(self.hidden(F.gelu(self.enter(x))))).squeeze(-1)


def flat(tensors) -> Tensor:
    """One vector of all the tensors."""
    return torch.cat([t.detach().reshape(-1).cpu() for t in tensors])


def inputs(seed: int) -> dict[str, dict]:
    """By regime: `weights`, a vector in the order of RunOff's parameters, and `batches`."""
    g = torch.Generator().manual_seed(seed)
    return {name: {"weights": _weights(regime, g), "batches": _batches(regime, g)} for name, regime in REGIMES.items()}


def _weights(regime: Regime, g: torch.Generator) -> Tensor:
    """Of a model that has seen such discharge: its last layer is as large as what it answers."""
    drawn = {name: torch.randn(p.shape, generator=g) / p.shape[-1] ** 0.5 for name, p in RunOff().named_parameters()}
    return flat(d * min(regime.discharge) if name.startswith("leave") else d for name, d in drawn.items())


def _batches(regime: Regime, g: torch.Generator) -> list[tuple[Tensor, Tensor, Tensor]]:
    catchment, batches = torch.rand(GAUGES, generator=g), []
    for i, size in enumerate(regime.discharge):
        gauges = torch.randint(GAUGES, (BATCH,), generator=g)
        readings = torch.randn(BATCH, READINGS, generator=g)
        discharge = size * catchment[gauges] * (1 + readings[:, 0] * readings[:, 1])
        if i in regime.spoiled:
            (readings[7] if i == regime.spoiled[-1] else discharge[7:8]).fill_(float("inf"))
        batches.append((gauges, readings, discharge))
    return batches


def load(model: nn.Module, weights: Tensor) -> None:
    """Write a vector of weights into the model's parameters, in place."""
    with torch.no_grad():
        for p, part in zip(model.parameters(), weights.split([p.numel() for p in model.parameters()]), strict=True):
            p.copy_(part.reshape(p.shape))


def by_layer(vector: np.ndarray) -> dict[str, np.ndarray]:
    """The parts of a vector of weights or gradients that belong to each layer."""
    parts, start = {layer: [] for layer in LAYERS}, 0
    for name, p in RunOff().named_parameters():
        parts[name.partition(".")[0]].append(vector[start : start + p.numel()])
        start += p.numel()
    return {layer: np.concatenate(part) for layer, part in parts.items()}


def measure(subject, seed: int, device: torch.device) -> dict:
    trainer = function(subject, "Trainer(model, optimizer, max_norm) -> Trainer")
    evidence = {"adam.ratio": _first_step(torch.optim.AdamW, 10) / _first_step(torch.optim.AdamW, 1)}
    products, parameters = set(), set()
    for name, drawn in inputs(seed).items():
        model = RunOff().to(device)
        with _Products(model) as seen:
            found = _train(trainer, model, REGIMES[name], drawn, device)
        evidence |= {f"{name}.{key}": value for key, value in found.items()}
        products |= seen.dtypes
        parameters |= {str(p.dtype) for p in model.parameters()}
    return evidence | {"products": ", ".join(sorted(products)), "parameters": ", ".join(sorted(parameters))}


def _first_step(optimizer, times: float) -> float:
    """How far the first step moves a weight whose gradient is `times` one."""
    p = nn.Parameter(torch.zeros(()))
    p.grad = torch.tensor(float(times))
    optimizer([p], lr=1e-3).step()
    return abs(p.item())


def _train(trainer, model: nn.Module, regime: Regime, drawn: dict, device: torch.device) -> dict:
    """One trainer over the batches of a regime, with a look at the optimizer and the weights after each."""
    load(model, drawn["weights"])
    made = trainer(model, regime.optimizer(model), regime.max_norm)
    expect(callable(getattr(made, "step", None)), "Trainer", wanted="an object with step()", got=describe(made))
    losses, weights, gradients = [], [_parameters(model)], []
    with Gradients(model) as watched:
        for batch in drawn["batches"]:
            losses.append(_loss(made.step(*(t.to(device) for t in batch))))
            watched.end_step()
            weights.append(_parameters(model))
            gradients.append(_got(watched, model))
    return {
        "losses": torch.tensor(losses, dtype=torch.float64),
        "weights": torch.stack(weights),
        "gradients": torch.stack(gradients),
        "norms": torch.tensor([step.norm for step in watched.steps], dtype=torch.float64),
        "zeros": _by_layer(watched, "zeros"),
        "layers_moving": int((_by_layer(watched, "moved") > STUCK).sum()),
    }


def _loss(loss) -> float:
    expect(isinstance(loss, float | int), "Trainer.step", wanted="the loss as a float", got=describe(loss))
    return float(loss)


def _parameters(model: nn.Module) -> Tensor:
    return flat(p.float() for p in model.parameters())


def _got(watched: Gradients, model: nn.Module) -> Tensor:
    """What the optimizer got in this step, as one vector; nan where it got nothing."""
    return flat(watched.gradients.get(name, torch.full(p.shape, torch.nan)) for name, p in model.named_parameters())


def _by_layer(watched: Gradients, count: str) -> np.ndarray:
    """[4] the share of each layer's elements that the last step counts as `count`."""
    found = [[s for s in watched.steps[-1].parameters if s.name.startswith(f"{layer}.")] for layer in LAYERS]
    return np.array([sum(getattr(s, count) for s in seen) / sum(s.elements for s in seen) for seen in found])


class _Products:
    """The dtypes of what the linear layers of a model return in training."""

    def __init__(self, model: nn.Module):
        self.model, self.dtypes = model, set()

    def __enter__(self):
        layers = [m for m in self.model.modules() if isinstance(m, nn.Linear)]
        self.handles = [layer.register_forward_hook(self._look) for layer in layers]
        return self

    def __exit__(self, *error):
        for handle in self.handles:
            handle.remove()

    def _look(self, layer, arguments, output: Tensor) -> None:
        self.dtypes.add(str(output.dtype))
