"""Measure lab04: evaluate few and many batches, train few and many; what is alive in between, and what came out."""

import gc
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from breakfix.contract import PARAMETERS_OF_TODAY, describe, expect, expect_tensors, function
from breakfix.probes.lineage import Growth, Held, alive, held
from breakfix.probes.memory import Card, resident_bytes

EVENTS, WIDTH, IGNORE, ACTIVITY, RATE = 40, 64, -100, 1.0, 0.5
LIFTS, WINDOW = 128, 12
FEW, MANY = 4, 16  # batches of an evaluation, and of an epoch of training
STRIDE = 4  # batches from one look at the graphs to the next
BROKEN_AT = 2  # the batch that cannot be read, in the evaluation that is interrupted
MIB = 2**20

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Regime:
    """The share of events that count, the parameters that the caller has frozen, and whether a batch is unreadable."""

    counting: float
    frozen: tuple[str, ...] = ()
    interrupted: bool = False


REGIMES = {"steady": Regime(1.0), "ragged": Regime(0.6, frozen=("embedding.weight",), interrupted=True)}


class LiftMonitor(nn.Module):
    """The reference architecture."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(EVENTS, WIDTH)
        self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, EVENTS)

    def forward(self, events: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        hidden, state = self.recurrent(self.embedding(events), state)
        return self.head(hidden), hidden, state


def inputs(seed: int) -> dict:
    """Batches to evaluate and to train on, by regime; and the seed of the weights."""
    g = torch.Generator().manual_seed(seed)
    drawn = {name: {"evaluate": _draw(g, regime), "train": _draw(g, regime)} for name, regime in REGIMES.items()}
    return {"seed": seed, "batches": drawn}


def _draw(g: torch.Generator, regime: Regime) -> list[Batch]:
    return [_batch(g, regime, i) for i in range(MANY)]


def _batch(g: torch.Generator, regime: Regime, i: int) -> Batch:
    events, targets = (torch.randint(EVENTS, (LIFTS, WINDOW), generator=g) for _ in range(2))
    share = 0.05 if regime.counting < 1 and i % 2 else regime.counting  # few events count in every other batch
    targets[torch.rand(targets.shape, generator=g) >= share] = IGNORE
    targets[0, 0] = events[0, 0]
    return events, targets


@torch.no_grad()
def set_weights(model: nn.Module, seed: int) -> None:
    """Write weights that only the seed decides into the model's own tensors."""
    g = torch.Generator().manual_seed(seed + 1)
    for _, p in sorted(model.named_parameters()):
        p.copy_(torch.randn(p.shape, generator=g) * (0.3 if p.ndim == 2 else 0.1))


def freeze(model: nn.Module, regime: Regime) -> None:
    """What the caller has frozen, and nothing else."""
    for name, p in model.named_parameters():
        p.requires_grad_(name not in regime.frozen)


def flat(tensors: Iterable[Tensor | None], like: nn.Module) -> Tensor:
    """[elements] float32 of one tensor per parameter, in the order of the parameters' names; None counts as zeros."""
    pairs = zip(tensors, (p for _, p in sorted(like.named_parameters())), strict=True)
    return torch.cat([(torch.zeros_like(p) if t is None else t).detach().reshape(-1).float().cpu() for t, p in pairs])


def weights(model: nn.Module) -> Tensor:
    return flat((p for _, p in sorted(model.named_parameters())), model)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)


def gradient(model: nn.Module, batch: Batch) -> tuple[Tensor, list[str]]:
    """The gradient of the loss of one batch, and the names of the parameters that got one."""
    events, targets = batch
    model.zero_grad()
    loss = F.cross_entropy(model(events)[0].flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
    if loss.requires_grad:
        loss.backward()
    named = sorted(model.named_parameters())
    found = flat((p.grad for _, p in named), model), [name for name, p in named if p.grad is not None]
    model.zero_grad()
    return found


def reference_evaluate(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """The metrics, without a graph."""
    state, loss, hits, count = None, 0.0, 0, 0
    with torch.no_grad():
        for events, targets in batches:
            logits, _, state = model(events, state)
            loss += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
            hits += (logits.argmax(-1) == targets).sum()
            count += (targets != IGNORE).sum()
    return {"loss": (loss / count).item(), "accuracy": (hits / count).item()}


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build(device) -> nn.Module")
    evaluate = function(subject, "evaluate(model, batches) -> dict[str, float]")
    train_epoch = function(subject, "train_epoch(model, optimizer, batches) -> dict")
    evidence, ledger = {"resident_at_start_mib": resident_bytes() / MIB}, []
    evidence["known.append_bytes"] = _appended_after_backward(device)
    with _new_objects_only():
        for name, regime in REGIMES.items():
            drawn = {k: _on(device, b) for k, b in inputs(seed)["batches"][name].items()}
            model = _built(build, seed, device)
            freeze(model, regime)
            found = _evaluated(evaluate, model, drawn["evaluate"], ledger, device)
            found |= _afterwards(evaluate, model, drawn, regime)
            freeze(model, regime)
            found |= _trained(train_epoch, model, drawn["train"], seed, ledger, device)
            evidence |= {f"{name}.{key}": value for key, value in found.items()}
    return evidence | {"counted_mib": max(ledger) / MIB}


@contextmanager
def _new_objects_only() -> Iterator[None]:
    """Let the garbage collector, and `alive`, pass over all that there is already: hundreds of thousands of objects."""
    frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


def _on(device: torch.device, batches: list[Batch]) -> list[Batch]:
    return [(events.to(device), targets.to(device)) for events, targets in batches]


def _built(build, seed: int, device: torch.device) -> nn.Module:
    """The subject's model with our weights. Raises Contract."""
    model = build(device)
    expect(isinstance(model, nn.Module), "build", wanted="an nn.Module", got=describe(model))
    wanted = {name: list(p.shape) for name, p in LiftMonitor().named_parameters()}
    found = {name: list(p.shape) for name, p in model.named_parameters()}
    expect_tensors(found, wanted, "build", PARAMETERS_OF_TODAY)
    set_weights(model, seed)
    return model


class Watched:
    """Batches one by one, and what is alive before each: `in_use` has the bytes on the card, every time.

    Every STRIDE batches, and after the last one, `graphs` has what all live tensors lead to; while training, `growth`
    also what each name of the function that asks for batches leads to.
    """

    def __init__(self, batches: list[Batch], card: Card, model: nn.Module, beside: list[Batch]):
        self.batches, self.card, self.model, self.beside = batches, card, model, (model, beside)
        self.in_use, self.graphs, self.growth = [], [], Growth(self.beside)

    def __iter__(self) -> Iterator[Batch]:
        for i, batch in enumerate(self.batches):
            self._look(i, sys._getframe(1).f_locals)
            yield batch
        self._look(len(self.batches), sys._getframe(1).f_locals)

    def _look(self, i: int, names: dict) -> None:
        self.in_use.append(self.card.in_use)
        if i % STRIDE == 0 and len(self.batches) == MANY:
            self.graphs.append(held(alive(), self.beside))
            if self.model.training:
                self.growth.look({k: v for k, v in names.items() if k not in ("model", "optimizer", "batches")})


def _watch(run, model: nn.Module, batches: list[Batch], count: int, ledger: list, device) -> tuple[dict, Watched, int]:
    """What `run` returned for the first `count` batches, what was seen on the way, and the peak in bytes."""
    gc.collect()
    with Card(device) as card:
        card.add(model, *(t for batch in batches for t in batch))
        watched = Watched(batches[:count], card, model, batches)
        result = run(iter(watched))
        gc.collect()
    ledger.append(card.peak.bytes)
    return result, watched, card.peak.bytes


def _numbers(result, name: str, wanted: dict[str, type]) -> dict:
    keys = " and ".join(f"{k}: {t.__name__}" for k, t in wanted.items())
    fits = isinstance(result, dict) and all(isinstance(result.get(k), t) for k, t in wanted.items())
    expect(fits, name, wanted=f"a dict with {keys}", got=describe(result))
    return result


def _evaluated(evaluate, model: nn.Module, batches: list[Batch], ledger: list, device: torch.device) -> dict:
    def run(watched):
        return _numbers(evaluate(model, watched), "evaluate", {"loss": float, "accuracy": float})

    metrics, _, few = _watch(run, model.train(), batches, FEW, ledger, device)
    metrics, watched, many = _watch(run, model.train(), batches, MANY, ledger, device)
    needed = _watch(lambda b: reference_evaluate(model.eval(), b), model, batches, MANY, [], device)[2]
    return {
        "evaluate.grows_by": (many - few) / (MANY - FEW),
        "evaluate.peak": many,
        "evaluate.times": many / needed,
        "evaluate.alive_mib": torch.tensor(watched.in_use) / MIB,
        "evaluate.nodes": torch.tensor([graph.nodes for graph in watched.graphs]),
        "evaluate.loss": metrics["loss"],
        "evaluate.accuracy": metrics["accuracy"],
    }


def _afterwards(evaluate, model: nn.Module, drawn: dict, regime: Regime) -> dict:
    """What the caller finds after an evaluation, whole or interrupted: modes, and the gradient of a batch."""
    model.train()
    raised = _evaluate_once(evaluate, model, drawn["evaluate"][:FEW], regime.interrupted)
    left = {
        "after.raised": raised,
        "after.grad_enabled": torch.is_grad_enabled(),
        "after.inference_mode": torch.is_inference_mode_enabled(),
        "after.training": model.training,
    }
    _without_dropout(model.train())  # as every epoch of training begins
    found, names = gradient(model, drawn["train"][0])
    torch.set_grad_enabled(True)  # it is written down; the rest is to be measured all the same
    return left | {"after.gradient": found, "after.trained": ", ".join(names)}


def _evaluate_once(evaluate, model: nn.Module, batches: list[Batch], interrupted: bool) -> str:
    def reading():
        for i, batch in enumerate(batches):
            if interrupted and i == BROKEN_AT:
                raise OSError("the log ends in the middle of a record")
            yield batch

    try:
        evaluate(model, reading())
    except OSError as error:
        return type(error).__name__
    return ""


def _without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def _trained(train_epoch, model: nn.Module, batches: list[Batch], seed: int, ledger: list, device) -> dict:
    _without_dropout(model)
    wanted = {"loss": list, "certainty": list, "smoothed": float}

    def run(watched):
        set_weights(model, seed)
        return _numbers(train_epoch(model, sgd(model), watched), "train_epoch", wanted)

    history, _, few = _watch(run, model, batches, FEW, ledger, device)
    model.zero_grad()
    history, watched, many = _watch(run, model, batches, MANY, ledger, device)
    return {
        "train.grows_by": (many - few) / (MANY - FEW),
        "train.peak": many,
        "train.alive_mib": torch.tensor(watched.in_use) / MIB,
        "train.saved_grows_by": _rate(watched.graphs).saved_bytes / STRIDE,
        "train.nodes_grow_by": _rate(watched.graphs).nodes / STRIDE,
        "train.grows_most": _most(watched.growth),
        "train.loss": torch.tensor(history["loss"], dtype=torch.float64),
        "train.certainty": torch.tensor(history["certainty"], dtype=torch.float64),
        "train.smoothed": history["smoothed"],
        "train.final": weights(model),
    }


def _rate(looks: list[Held]) -> Held:
    growth = Growth()
    growth.looks = looks
    return growth.rate


def _most(growth: Growth) -> str:
    """The name of train_epoch's that holds on to the most bytes, step by step."""
    rates = {place: rate.saved_bytes for place, rate in growth.rates.items() if rate.saved_bytes > 1024}
    return max(rates, key=rates.get).strip("['").partition("'")[0] if rates else "none"


def _appended_after_backward(device: torch.device) -> float:
    """Bytes that each step adds where losses are kept after backward and nothing else is."""
    model, losses, in_use = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).to(device), [], []
    x = torch.ones(64, 256, device=device)
    with Card(device, block=1) as card:
        card.add(model, x)
        for _ in range(6):
            loss = model(x).square().mean()
            loss.backward()
            losses.append(loss)
            in_use.append(card.in_use)
    return (in_use[-1] - in_use[2]) / 3


# The engine measures this one too: what the measurement itself occupies, seen from outside.
IDLE = SimpleNamespace(
    build=lambda device: LiftMonitor().to(device),
    evaluate=lambda model, batches: {"loss": float(len(list(batches))), "accuracy": 0.0},
    train_epoch=lambda model, optimizer, batches: {"loss": [], "certainty": [], "smoothed": float(len(list(batches)))},
)
