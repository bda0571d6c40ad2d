"""Measure lab01: train models of known size, weights and batches on a card with room for 4.6 times their parameters."""

import gc
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from breakfix.contract import PARAMETERS_OF_TODAY, describe, expect, expect_tensors, function
from breakfix.probes.memory import Card, Moment, resident_bytes

ITEMS = 1024
BUDGET = 4.6  # all bytes are in units of the reference model's parameters
DRAWN = 65_537  # random numbers that all weights are made of; a prime, so that no two rows of a weight are equal
SAMPLES = 512  # elements of each parameter that become evidence
OWNED = ("parameters", "gradients", "optimizer state", "kept", "buffers")


@dataclass(frozen=True)
class Regime:
    """A size of model, and the sizes of the batches that it is trained on, one update each."""

    width: int
    depth: int
    batches: tuple[int, ...]

    @cached_property
    def bytes(self) -> int:
        """Of all parameters of the reference model."""
        return sum(p.numel() * p.element_size() for p in skeleton(self).parameters())


EVEN, RAGGED = (32, 32, 32, 32, 32, 32), (32, 1, 27, 2, 29, 1)  # no size divides them all: a mean of means shows
# The largest comes first: what a smaller one leaves behind must not add to the peak that is seen from outside.
ON_CPU = {"large": Regime(480, 6, (32, 8)), "even": Regime(160, 6, EVEN), "ragged": Regime(160, 6, RAGGED)}
# 411 MB of parameters: against that, the workspaces of cuBLAS are small.
ON_CUDA = {"large": Regime(1024, 12, (32, 8)), "even": Regime(1024, 12, EVEN), "ragged": Regime(1024, 12, RAGGED)}


def regimes(device: torch.device) -> dict[str, Regime]:
    return ON_CUDA if device.type == "cuda" else ON_CPU


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class NextItem(nn.Module):
    """The reference architecture."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ITEMS, width)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.head = nn.Linear(width, ITEMS)

    def forward(self, items: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(items)))


def skeleton(regime: Regime) -> nn.Module:
    """The reference model without a byte of memory."""
    with torch.device("meta"):
        return NextItem(regime.width, regime.depth)


def inputs(seed: int) -> dict:
    """Batches of items by regime, and the places (as fractions of a tensor) whose elements become evidence."""
    g = torch.Generator().manual_seed(seed)
    sizes = {name: regime.batches for name, regime in ON_CPU.items()}
    return {
        "seed": seed,
        "batches": {name: [_batch(size, g) for size in sizes[name]] for name in sizes},
        "places": torch.rand(SAMPLES, generator=g, dtype=torch.float64),
    }


def _batch(size: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randint(ITEMS, (size,), generator=g), torch.randint(ITEMS, (size,), generator=g)


@torch.no_grad()
def set_weights(model: nn.Module, seed: int) -> None:
    """Write weights that only the seed decides into the model's own tensors."""
    drawn, start = torch.randn(DRAWN, generator=torch.Generator().manual_seed(seed + 1)), 0
    for name, p in sorted(model.named_parameters()):
        normal = _looped(drawn, start, p.numel()).view(p.shape)
        p.copy_(normal / p.shape[-1] ** 0.5 if p.ndim == 2 else 0.1 * normal + name.endswith("norm.weight"))
        start = (start + p.numel()) % DRAWN


def _looped(drawn: Tensor, start: int, count: int) -> Tensor:
    """`count` of the numbers `drawn`, from `start` on and round again: to draw as many takes longer than to train."""
    turned = drawn.roll(-start)
    return turned.repeat(-(-count // len(turned)))[:count]


@torch.no_grad()
def sample(model: nn.Module, places: Tensor) -> Tensor:
    """[parameters, SAMPLES] float32: elements of each parameter at the secret places, in the order of their names."""
    flat = [p.detach().reshape(-1) for _, p in sorted(model.named_parameters())]
    return torch.stack([f[(places * f.numel()).long().to(f.device)].float().cpu() for f in flat])


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build(device, width, depth) -> tuple[nn.Module, Any]")
    train_step = function(subject, "train_step(model, state, batch) -> float")
    drawn, evidence, ledger = inputs(seed), {"budget": BUDGET, "resident_at_start": resident_bytes()}, Ledger()
    for name, regime in regimes(device).items():
        card = Card(device, int(BUDGET * regime.bytes))
        found = _with_a_budget(card, build, train_step, regime, drawn["batches"][name], drawn)
        evidence |= {f"{name}.{key}": value for key, value in found.items()}
        ledger.close(card)
    for name, items in (("whole", 32), ("half", 16)):
        card = Card(device)
        found = _without_a_budget(card, build, train_step, regimes(device)["even"], items, drawn)
        evidence |= {f"{name}.{key}": value for key, value in found.items()}
        ledger.close(card)
    evidence["half.saves"] = 1 - evidence["half.peak"] / evidence["whole.peak"]
    evidence["counted_bytes"] = ledger.most
    return evidence | (_on_the_real_card(build, train_step, drawn, device) if device.type == "cuda" else {})


@dataclass
class Ledger:
    """The most bytes that the cards of one process counted, whatever earlier ones left behind included."""

    left: int = 0
    most: int = 0

    def close(self, card: Card) -> None:
        self.most = max(self.most, self.left + _highest(card).bytes)
        gc.collect()  # a model that a hook refers to is a cycle
        self.left += card.in_use


def _highest(card: Card) -> Moment:
    """The peak, or what a refused operator asked for if that is more: the operator has run, after all."""
    return max([card.peak, *card.refusals], key=lambda moment: moment.bytes)


def _built(build, regime: Regime, seed: int, device: torch.device) -> tuple[nn.Module, object]:
    """The subject's model with our weights, and its state. Raises Contract."""
    made = build(device, regime.width, regime.depth)
    pair = isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)
    expect(pair, "build", wanted="an nn.Module and what else train_step needs", got=describe(made))
    _expect_parameters(made[0], regime, "build")
    return made


def _expect_parameters(model: nn.Module, regime: Regime, name: str) -> None:
    wanted = {name: list(p.shape) for name, p in skeleton(regime).named_parameters()}
    found = {name: list(p.shape) for name, p in model.named_parameters()}
    expect_tensors(found, wanted, name, PARAMETERS_OF_TODAY)


def _step(train_step, model: nn.Module, state, batch: tuple[Tensor, Tensor]) -> float:
    loss = train_step(model, state, batch)
    expect(isinstance(loss, float | int), "train_step", wanted="the loss as a float", got=describe(loss))
    return float(loss)


def _train(card: Card, build, train_step, regime: Regime, batches, drawn: dict) -> tuple[nn.Module, list[float]]:
    """Build without a budget, take our weights, then one update per batch until the card refuses one."""
    device, budget, losses = torch.device(card.device), card.budget, []
    batches = [tuple(t.to(device) for t in batch) for batch in batches]
    card.budget = None
    with card:
        model, state = _built(build, regime, drawn["seed"], device)
        card.add(model)  # so that its parameters and gradients are known by name, whoever steps
    set_weights(model, drawn["seed"])
    card.budget = budget
    try:
        with card:
            for batch in batches:
                losses.append(_step(train_step, model, state, batch))
                card.end_step()
    except torch.OutOfMemoryError:
        pass  # the card has written it down
    return model, losses


def _with_a_budget(card: Card, build, train_step, regime: Regime, batches, drawn: dict) -> dict:
    model, losses = _train(card, build, train_step, regime, batches, drawn)
    _expect_parameters(model, regime, "train_step")
    return {
        "parameter_bytes": regime.bytes,
        "peak": _highest(card).bytes / regime.bytes,
        "peak_at": f"{'refused: ' if card.refusals else ''}{_highest(card)}",
        "refused": len(card.refusals),
        "dies_in": card.refusals[0].phase if card.refusals else "nowhere",
        "losses": torch.tensor(losses, dtype=torch.float64),
        "dtypes": sorted({str(p.dtype) for p in model.parameters()}),
        "final": sample(model, drawn["places"]),
    }


def _without_a_budget(card: Card, build, train_step, regime: Regime, items: int, drawn: dict) -> dict:
    """What two updates need if nobody refuses, on the first `items` of each batch."""
    batches = [tuple(t[:items] for t in batch) for batch in drawn["batches"]["even"][:2]]
    _train(card, build, train_step, regime, batches, drawn)
    held = {kind: size / regime.bytes for kind, size in card.peak.held.items()}
    return {
        "peak": card.peak.bytes / regime.bytes,
        "peak_at": str(card.peak),
        "stays": card.timeline[-1][1] / regime.bytes,
        "bytes_per_parameter": 4 * card.peak.bytes / regime.bytes,
        "held": held,
        "beside": sum(size for kind, size in held.items() if kind not in OWNED),
        "timeline": torch.tensor([(op, size / regime.bytes) for op, size in card.timeline], dtype=torch.float32),
    }


def _on_the_real_card(build, train_step, drawn: dict, device: torch.device) -> dict:
    """CUDA's own count of the same training, and what happens under a real cap. Not run on a GPU yet."""
    regime, evidence = regimes(device)["even"], {}
    batches = [tuple(t.to(device) for t in batch) for batch in drawn["batches"]["even"]]
    torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)  # cuBLAS takes its workspace once
    workspace, total = torch.cuda.memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
    for name, cap in (("allocated", None), ("capped", int(1.02 * (BUDGET * regime.bytes + workspace)))):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.set_per_process_memory_fraction(1.0 if cap is None else cap / total, device)
        try:
            model, state = _built(build, regime, drawn["seed"], device)
            set_weights(model, drawn["seed"])
            for batch in batches:
                train_step(model, state, batch)
            evidence[f"{name}.error"] = ""
        except torch.OutOfMemoryError as error:  # shown, never graded: the cap is on segments, not on tensors
            evidence[f"{name}.error"] = str(error)
        evidence[f"{name}.peak"] = (torch.cuda.max_memory_allocated(device) - workspace) / regime.bytes
        model = state = None
    torch.cuda.set_per_process_memory_fraction(1.0, device)
    return evidence


# The engine measures this one too: what the measurement itself occupies, seen from outside.
IDLE = SimpleNamespace(
    build=lambda device, width, depth: (NextItem(width, depth).to(device), None),
    train_step=lambda model, state, batch: 0.0,
)
