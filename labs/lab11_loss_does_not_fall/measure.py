"""Measure lab11: have a ward of trainers diagnosed, then repaired, and train what comes out of the repair."""

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from breakfix.contract import describe, expect, function
from breakfix.probes.ownership import ownership
from breakfix.probes.parity import relative_error

ROWS, HELD_OUT, BATCH, EPOCHS, TIME = 384, 256, 48, 12, 16
MAX_SHIFT = 4


@dataclass
class Trainer:
    """What the clinic gets."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    inputs: Tensor
    targets: Tensor
    batch_size: int
    epochs: int
    max_norm: float | None = None


def train(trainer: Trainer, epochs: int) -> list[float]:
    """What the platform does with a trainer: so many passes over its data, in order. The loss of each batch."""
    losses = []
    trainer.model.train()
    for _ in range(epochs):
        for x, y in zip(*(t.split(trainer.batch_size) for t in (trainer.inputs, trainer.targets)), strict=True):
            loss = trainer.loss_fn(trainer.model(x), y)
            trainer.optimizer.zero_grad()
            loss.backward()
            if trainer.max_norm is not None:
                nn.utils.clip_grad_norm_(trainer.model.parameters(), trainer.max_norm)
            trainer.optimizer.step()
            losses.append(loss.item())
    return losses


# ---------------------------------------------------------------------------------------------------------- the models


class Net(nn.Module):
    """Layers, each with an activation, and a head; `hold` is what keeps the layers."""

    def __init__(self, sizes: list[int], activation: Callable[[int], nn.Module], hold: Callable, end: nn.Module):
        super().__init__()
        self.layers = hold([nn.Linear(a, b) for a, b in pairwise(sizes[:-1])])
        self.activations = nn.ModuleList(activation(n) for n in sizes[1:-1])
        self.head, self.end = nn.Linear(*sizes[-2:]), end

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        layers = self.layers.values() if hasattr(self.layers, "values") else self.layers
        for layer, activation in zip(layers, self.activations, strict=True):
            x = activation(layer(x))
        return self.end(self.head(x))


class Staged(nn.Module):
    """The same in two stages, which it also lists for whoever wants to go through them."""

    def __init__(self, sizes: list[int], activation: Callable[[int], nn.Module], hold: Callable, end: nn.Module):
        super().__init__()
        self.body = Net(sizes[:-1], activation, hold, activation(sizes[-2]))
        self.head, self.end = nn.Linear(*sizes[-2:]), end
        self.stages = [self.body, self.head, self.end]

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.head(self.body(x)))


class Plain(nn.Sequential):
    """The same as a Sequential."""

    def __init__(self, sizes: list[int], activation: Callable[[int], nn.Module], hold: Callable, end: nn.Module):
        pairs = [[nn.Linear(a, b), activation(b)] for a, b in pairwise(sizes[:-1])]
        super().__init__(nn.Flatten(), *(m for pair in pairs for m in pair), nn.Linear(*sizes[-2:]), end)


class Recurrent(nn.Module):
    """A recurrent layer over [B, T, features], and a head on its last state."""

    def __init__(self, sizes: list[int], activation: Callable[[int], nn.Module], hold: Callable, end: nn.Module):
        super().__init__()
        kind = "relu" if isinstance(activation(1), nn.ReLU) else "tanh"
        self.memory = nn.RNN(sizes[0] // TIME, sizes[1], nonlinearity=kind, batch_first=True)
        nn.init.orthogonal_(self.memory.weight_hh_l0)
        self.head, self.end = nn.Linear(sizes[1], sizes[-1]), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.head(self.memory(x)[0][:, -1]))


def named(layers: list[nn.Module]) -> dict[str, nn.Module]:
    return {f"stage{i}": layer for i, layer in enumerate(layers)}


def normalized(n: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(n), nn.Sigmoid())


def relu(n: int) -> nn.Module:
    return nn.ReLU()


def tanh(n: int) -> nn.Module:
    return nn.Tanh()


def sigmoid(n: int) -> nn.Module:
    return nn.Sigmoid()


# ----------------------------------------------------------------------------------------------------------- the plans


MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=5e-3)
PLAIN = {True: partial(torch.optim.SGD, lr=0.4), False: partial(torch.optim.SGD, lr=0.1)}  # by `kinds`
FAST = partial(torch.optim.SGD, lr=0.2, momentum=0.9)  # for a head alone
STEEP = partial(torch.optim.SGD, lr=0.02, momentum=0.9)  # for what is deep or recurrent
GENTLE = partial(torch.optim.SGD, lr=0.01, momentum=0.9)


@dataclass(frozen=True)
class Plan:
    """How a trainer is made; what is None is drawn."""

    form: Callable | None = None
    kinds: bool | None = None  # a classifier, or else one number is estimated
    depth: int | None = None
    activation: Callable[[int], nn.Module] = relu
    hold: Callable = nn.ModuleList
    end: Callable[[], nn.Module] = nn.Identity
    loss: str = "plain"
    start: Callable[[nn.Module, torch.Generator], None] = lambda model, g: None  # on top of PyTorch's own
    optimizer: Callable | None = None
    column: bool = True  # an estimator's targets are [N, 1], or else [N]
    shifted: bool = False
    head_replaced: bool = False  # after the optimizer was made
    frozen: bool = False  # the first layer's bias
    head_only: bool = False  # is what the optimizer gets
    slowed: float = 1.0
    trained: bool = False
    noise: float = 0.0  # share of the targets that are drawn at random

    def settled(self, seed: int) -> "Plan":
        """The same with everything drawn."""
        g = torch.Generator().manual_seed(seed)
        drawn = {
            "form": _one_of([Net, Staged] if self.hold is not nn.ModuleList else [Net, Staged, Plain], g),
            "kinds": _one_of([True, False], g),
            "depth": _one_of([2, 3], g),
        }
        plan = replace(self, **{name: value for name, value in drawn.items() if getattr(self, name) is None})
        return replace(plan, optimizer=plan.optimizer or _one_of([MOMENTUM, ADAM, PLAIN[plan.kinds]], g))


def _dead_bias(model: nn.Module, g: torch.Generator) -> None:
    _one_of(_linear(model)[:-1], g).bias.fill_(-25.0)


def _dead_weights(model: nn.Module, g: torch.Generator) -> None:
    layer = _one_of(_linear(model)[1:-1], g)
    layer.weight.abs_().neg_()
    layer.bias.fill_(-0.01)


def _half_dead(model: nn.Module, g: torch.Generator) -> None:
    for layer in _linear(model)[:-1]:
        layer.bias[: len(layer.bias) // 2] = -25.0


def _constant(model: nn.Module, g: torch.Generator) -> None:
    for p in model.parameters():
        p.fill_(0.05 if p.ndim > 1 else 0.0)


def _zeros(model: nn.Module, g: torch.Generator) -> None:
    for p in model.parameters():
        p.zero_()


def _zero_head(model: nn.Module, g: torch.Generator) -> None:
    for p in _linear(model)[-1].parameters():
        p.zero_()


def _scaled(gain: float) -> Callable[[nn.Module, torch.Generator], None]:
    """Normal weights of `gain` / sqrt(fan in)."""

    def start(model: nn.Module, g: torch.Generator) -> None:
        for layer in _linear(model):
            layer.weight.copy_(gain * torch.randn(layer.weight.shape, generator=g) / layer.weight.shape[1] ** 0.5)
            layer.bias.zero_()

    return start


def _loud_memory(model: nn.Module, g: torch.Generator) -> None:
    model.memory.weight_hh_l0.mul_(4.0)


def _linear(model: nn.Module) -> list[nn.Linear]:
    """All linear layers, in order."""
    return [m for m in model.modules() if isinstance(m, nn.Linear)]


def _one_of(several: list, g: torch.Generator) -> Any:
    return several[int(torch.randint(len(several), (), generator=g))]


DEEP = {"depth": 8, "optimizer": STEEP}
TANH, RELU = Plan(activation=tanh, start=_scaled(1.0), **DEEP), Plan(start=_scaled(2**0.5), depth=6, optimizer=GENTLE)
MEMORY = Plan(form=Recurrent, kinds=True, depth=1, optimizer=STEEP)
FLAT = partial(nn.Flatten, 0)

# By patient: the cause, the plan of the trainer without its fault, and what the fault changes in it.
PATIENTS: dict[str, tuple[str, Plan, dict]] = {
    "softmax as a layer": ("softmax_twice", Plan(kinds=True), {"end": partial(nn.Softmax, dim=1)}),
    "softmax in the loss": ("softmax_twice", Plan(kinds=True), {"loss": "softmaxed"}),
    "new head": ("stale_optimizer", Plan(), {"head_replaced": True}),
    "new head, frozen bias": ("stale_optimizer", Plan(frozen=True), {"head_replaced": True}),
    "layers in a list": ("unregistered_layers", Plan(form=Net), {"hold": list}),
    "layers in a dict": ("unregistered_layers", Plan(form=Staged), {"hold": named}),
    "out of step": ("misaligned_targets", Plan(), {"shifted": True}),
    "series out of step": ("misaligned_targets", MEMORY, {"shifted": True}),
    "dead by bias": ("dead_units", Plan(), {"start": _dead_bias}),
    "dead by weights": ("dead_units", Plan(), {"start": _dead_weights}),
    "all constant": ("equal_units", Plan(), {"start": _constant}),
    "all zero": ("equal_units", Plan(), {"start": _zeros}),
    "row against column": ("broadcast_loss", Plan(kinds=False), {"column": False}),
    "column against row": (
        "broadcast_loss",
        Plan(kinds=False, column=False, end=FLAT, loss="by hand"),
        {"column": True},
    ),
    "twelve sigmoids": ("vanishing_gradients", Plan(depth=12, activation=sigmoid, optimizer=STEEP), {}),
    "small start": ("vanishing_gradients", TANH, {"start": _scaled(0.05)}),
    "loud memory": ("exploding_gradients", MEMORY, {"start": _loud_memory}),
    "large start": ("exploding_gradients", RELU, {"start": _scaled(12.0)}),
    "slow": ("learning_rate", Plan(), {"slowed": 1e-4}),
    "slower": ("learning_rate", Plan(), {"slowed": 1e-5}),
    "sound": ("healthy", Plan(), {}),
    "sound, noisy": ("healthy", Plan(kinds=True, noise=0.5), {}),
    "sound, trained": ("healthy", Plan(trained=True), {}),
    "sound, log-probabilities": ("healthy", Plan(kinds=True, end=partial(nn.LogSoftmax, dim=1)), {}),
    "sound, probabilities": ("healthy", Plan(kinds=True, end=partial(nn.Softmax, dim=1), loss="of probabilities"), {}),
    "sound, squeezed in the loss": ("healthy", Plan(kinds=False, column=False, loss="squeezed"), {}),
    "sound, half dead": ("healthy", Plan(start=_half_dead), {}),
    "sound, head of zeros": ("healthy", Plan(start=_zero_head), {}),
    "sound, head alone": ("healthy", Plan(head_only=True, optimizer=FAST), {}),
    "sound, normalized": ("healthy", Plan(depth=12, activation=normalized, optimizer=STEEP), {}),
    "sound, deep": ("healthy", TANH, {}),
    "sound, deeper": ("healthy", RELU, {}),
    "sound, recurrent": ("healthy", MEMORY, {}),
}
SICK = [name for name, (cause, _, _) in PATIENTS.items() if cause != "healthy"]
CAUSES = tuple(sorted({cause for cause, _, _ in PATIENTS.values()}))
NEW_WEIGHTS = ("dead_units", "equal_units", "exploding_gradients", "vanishing_gradients")  # in these causes only


# ------------------------------------------------------------------------------------------------------------ the ward


@dataclass(frozen=True)
class Patient:
    """A trainer of the ward, made anew at each call of `trainer`."""

    name: str
    seed: int

    @property
    def cause(self) -> str:
        return PATIENTS[self.name][0]

    @property
    def plan(self) -> Plan:
        """Of the twin."""
        return PATIENTS[self.name][1].settled(self.seed)

    def trainer(self, device: torch.device) -> Trainer:
        fault = PATIENTS[self.name][2]
        return _made(replace(self.plan, **fault), self.seed, device)

    def twin(self, device: torch.device) -> Trainer:
        """The same without the fault."""
        return _made(self.plan, self.seed, device)

    def unseen(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows of the same kind that no trainer has: inputs, and targets as rows."""
        x, y = _data(self.plan, self.seed)
        return x[ROWS:].to(device), y[ROWS:].reshape(-1).to(device)

    @property
    def chance(self) -> float:
        """The loss of the best answer that is always the same."""
        y = _data(self.plan, self.seed)[1][ROWS:]
        if y.is_floating_point():
            return y.var(correction=0).item()
        shares = torch.bincount(y) / len(y)
        return -(shares * shares.clamp_min(1e-9).log()).sum().item()


def inputs(seed: int) -> list[Patient]:
    """The ward, in an order of its own."""
    g = torch.Generator().manual_seed(seed)
    seeds = torch.randint(2**31, (len(PATIENTS),), generator=g).tolist()
    patients = [Patient(name, s) for name, s in zip(PATIENTS, seeds, strict=True)]
    return [patients[i] for i in torch.randperm(len(patients), generator=g)]


def _sizes(plan: Plan, g: torch.Generator) -> list[int]:
    """Features, the widths of the hidden layers, and outputs."""
    features, width, kinds = (int(torch.randint(a, b, (), generator=g)) for a, b in ((6, 12), (20, 33), (4, 8)))
    features = TIME * 4 if plan.form is Recurrent else features
    return [features, *[width] * plan.depth, kinds if plan.kinds else 1]


def _data(plan: Plan, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the rows to train on, then of those held out."""
    g = torch.Generator().manual_seed(seed)
    sizes = _sizes(plan, g)
    count, features = ROWS + HELD_OUT, sizes[0]
    x = torch.randn(count, features, generator=g)
    if plan.kinds:
        y = torch.randint(sizes[-1], (count,), generator=g)
        centres = torch.randn(sizes[-1], features, generator=g)
        x = x + (12.0 if plan.form is Recurrent else 5.0) * F.normalize(centres)[y]
        drawn = torch.rand(count, generator=g) < plan.noise
        y = torch.where(drawn, torch.randint(sizes[-1], (count,), generator=g), y)
    else:
        z = x @ F.normalize(torch.randn(features, 2, generator=g), dim=0)
        y = z[:, :1].tanh() + 0.6 * z[:, 1:] + 0.1 * torch.randn(count, 1, generator=g)
        y = (y - y.mean()) / y.std() if plan.column else ((y - y.mean()) / y.std()).squeeze(1)
    x = x / x.std()
    x = x.view(count, TIME, -1) if plan.form is Recurrent else x
    return x, y


def _made(plan: Plan, seed: int, device: torch.device) -> Trainer:
    x, y = (t[:ROWS].to(device) for t in _data(plan, seed))
    g = torch.Generator().manual_seed(seed + 1)
    sizes = _sizes(plan, torch.Generator().manual_seed(seed))
    model = _model(plan, sizes, seed, g).to(device)
    for layer in _unregistered(model):
        layer.to(device)
    mine = _linear(model)[-1] if plan.head_only else model
    optimizer = plan.optimizer([p for p in mine.parameters() if p.requires_grad])
    for group in optimizer.param_groups:
        group["lr"] *= plan.slowed
    if plan.head_replaced:
        head = _linear(model)[-1]
        model.set_submodule(next(name for name, m in model.named_modules() if m is head), copy.deepcopy(head))
    if plan.shifted:
        k = int(torch.randint(1, MAX_SHIFT + 1, (), generator=g)) * (1 if torch.rand((), generator=g) < 0.5 else -1)
        y = y.roll(k, dims=0)
    trainer = Trainer(model, optimizer, _loss(plan), x, y, BATCH, EPOCHS)
    if plan.trained:
        train(trainer, 12)
    return trainer


def _model(plan: Plan, sizes: list[int], seed: int, g: torch.Generator) -> nn.Module:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = plan.form(sizes, plan.activation, plan.hold, plan.end())
        plan.start(model, g)
    if plan.frozen:
        _linear(model)[0].bias.requires_grad_(False)
    return model


def _unregistered(model: nn.Module) -> Iterator[nn.Module]:
    for part in model.modules():
        layers = vars(part).get("layers", ())
        yield from layers.values() if isinstance(layers, dict) else layers


def _loss(plan: Plan) -> Callable[[Tensor, Tensor], Tensor]:
    """Each is a lambda in the same place: its name says nothing."""
    plain = F.cross_entropy if plan.kinds else F.mse_loss
    score = {
        "plain": plain,
        "softmaxed": lambda outputs, targets: plain(outputs.softmax(1), targets),
        "of probabilities": lambda outputs, targets: F.nll_loss(outputs.clamp_min(1e-12).log(), targets),
        "squeezed": lambda outputs, targets: plain(outputs.squeeze(-1), targets),
        "by hand": lambda outputs, targets: (outputs - targets).square().mean(),
    }[plan.loss]
    return lambda outputs, targets: score(outputs, targets)


# ------------------------------------------------------------------------------------------------------------- measure


def measure(subject, seed: int, device: torch.device) -> dict:
    diagnose = function(subject, "diagnose(trainer) -> str")
    repair = function(subject, "repair(trainer, cause) -> Trainer")
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    ward, evidence = inputs(seed), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some patients have PyTorch warn at every step
        for patient in ward:  # all of them before the first repair, which is told the cause
            evidence |= _keyed(patient, _diagnosed(diagnose, patient, device))
        for patient in ward:
            treat = _left_alone if patient.cause == "healthy" else _treated
            evidence |= _keyed(patient, treat(repair, patient, device))
    return evidence | _for_the_pictures(evidence, ward, device)


def _keyed(patient: Patient, found: dict) -> dict:
    return {f"{patient.name}.{key}": value for key, value in found.items()}


def _diagnosed(diagnose, patient: Patient, device: torch.device) -> dict:
    trainer = patient.trainer(device)
    before = _state(trainer)
    torch.manual_seed(patient.seed)
    cause = diagnose(trainer)
    expect(cause in CAUSES, "diagnose", wanted=f"one of {', '.join(CAUSES)}", got=describe(cause))
    return {"named": cause, "touched": _differences(before, _state(trainer))}


def _left_alone(repair, patient: Patient, device: torch.device) -> dict:
    trainer = patient.trainer(device)
    before = _state(trainer)
    return {"altered": _differences(before, _state(_repaired(repair, trainer, patient)))}


def _treated(repair, patient: Patient, device: torch.device) -> dict:
    """What a repair leaves as it was, whether its loss is the task's, and how well the platform then trains it."""
    trainer, twin = patient.trainer(device), patient.twin(device)
    before = _fixed_facts(trainer, patient)
    repaired = _repaired(repair, trainer, patient)
    found = {
        "altered": _differences(before, _fixed_facts(repaired, patient)) + _names(repaired.model, twin.model, patient),
        "rows": len(repaired.inputs),
        "mispaired": _mispaired(repaired, patient, device),
        "untrained": _unseen_loss(repaired.model, patient, device) / patient.chance,
        "objective": _objective_error(repaired, twin, patient, device),
    }
    weights = {name: p.detach().clone() for name, p in repaired.model.named_parameters() if p.ndim > 1}
    train(repaired, EPOCHS)
    now = dict(repaired.model.named_parameters())
    if patient.cause == "vanishing_gradients" and _straight(repaired.model, patient):
        found["altered"].append("the model is a straight line")
    found["still"] = [name for name, value in weights.items() if torch.equal(value, now[name])]
    return found | {"loss": _unseen_loss(repaired.model, patient, device) / patient.chance}


def _repaired(repair, trainer: Trainer, patient: Patient) -> Trainer:
    torch.manual_seed(patient.seed)
    made = repair(trainer, patient.cause)
    lacking = [name for name in Trainer.__dataclass_fields__ if not hasattr(made, name)]
    expect(not lacking, "repair", wanted="a trainer", got=f"{describe(made)} without {', '.join(lacking)}")
    return made


def _state(trainer: Trainer) -> dict[str, Any]:
    """Everything that a diagnosis could have changed, by name."""
    kept = {f"model.{name}": value.clone() for name, value in trainer.model.state_dict().items()}
    for layer in _unregistered(trainer.model):
        kept |= {f"{id(p)}": p.detach().clone() for p in layer.parameters()}
    kept |= {f"mode of {name or 'the model'}": m.training for name, m in trainer.model.named_modules()}
    kept |= {f"hooks of {name or 'the model'}": _hooks(m) for name, m in trainer.model.named_modules()}
    kept |= {f"frozen {name}": not p.requires_grad for name, p in trainer.model.named_parameters()}
    state = trainer.optimizer.state_dict()
    kept |= {f"optimizer.{i}.{key}": copy.deepcopy(v) for i, s in state["state"].items() for key, v in s.items()}
    kept |= {f"optimizer.group{i}": repr(group) for i, group in enumerate(state["param_groups"])}
    kept |= {"inputs": trainer.inputs.clone(), "targets": trainer.targets.clone(), "loss_fn": id(trainer.loss_fn)}
    return kept | _settings(trainer)


def _hooks(module: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for kind in kinds)


def _settings(trainer: Trainer) -> dict[str, Any]:
    return {name: getattr(trainer, name) for name in ("batch_size", "epochs", "max_norm")}


def _fixed_facts(trainer: Trainer, patient: Patient) -> dict[str, Any]:
    """What no repair of this cause has to change."""
    facts = {"optimizer": type(trainer.optimizer).__name__} | _settings(trainer)
    facts["frozen"] = sorted(name for name, p in trainer.model.named_parameters() if not p.requires_grad)
    if patient.cause == "exploding_gradients":
        del facts["max_norm"]
    if patient.cause != "learning_rate":
        groups = trainer.optimizer.param_groups
        facts["lr"], facts["momentum"] = ({group.get(key) for group in groups} for key in ("lr", "momentum"))
    return facts


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what is not as it was, bit for bit."""
    return sorted(key for key in before | after if not _same(before.get(key), after.get(key)))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b


def _names(model: nn.Module, twin: nn.Module, patient: Patient) -> list[str]:
    """What the state_dict lacks or has too much of, next to the twin's."""
    got, wanted = ({n: tuple(v.shape) for n, v in m.state_dict().items()} for m in (model, twin))
    if patient.cause == "unregistered_layers":  # under which names, the repair may choose
        numbers = [sum(math.prod(shape) for shape in state.values()) for state in (got, wanted)]
        return [] if numbers[0] == numbers[1] else [f"{numbers[0]} numbers in the state_dict, not {numbers[1]}"]
    lost = [f"lost {name}" for name in wanted if got.get(name) != wanted[name]]
    gained = [f"gained {name}" for name in got.keys() - wanted.keys()]
    return sorted(lost + (gained if patient.cause != "vanishing_gradients" else []))


def _mispaired(repaired: Trainer, patient: Patient, device: torch.device) -> int:
    """Rows whose target is another's, or that are not in the order of the data."""
    x, y = (t[:ROWS].to(device) for t in _data(patient.plan, patient.seed))
    place = {tuple(row): i for i, row in enumerate(x.flatten(1)[:, :4].tolist())}
    rows = torch.tensor([place.get(tuple(r), -1) for r in repaired.inputs.flatten(1)[:, :4].tolist()], device=device)
    got = repaired.targets.reshape(-1)
    if len(got) != len(rows) or (rows < 0).any():
        return max(len(rows), 1)
    wrong = int((got != y.reshape(-1)[rows]).sum())
    return wrong + int((rows.diff() % ROWS > 2 * MAX_SHIFT).sum())


def _objective_error(repaired: Trainer, twin: Trainer, patient: Patient, device: torch.device) -> float:
    """How far the loss of unseen rows is from what it is without the fault, relatively."""
    x, y = patient.unseen(device)
    models = [copy.deepcopy(t.model).eval() for t in (repaired, twin)]
    with torch.no_grad():
        if patient.cause in NEW_WEIGHTS:
            models[1] = _with_weights_of(models, patient)
        outputs, wanted = (model(x) for model in models)
        got = repaired.loss_fn(outputs, y.reshape(-1, *repaired.targets.shape[1:]))
    return relative_error(got.reshape(1).cpu(), _task_loss(wanted, y).reshape(1).cpu())


def _with_weights_of(models: list[nn.Module], patient: Patient) -> nn.Module:
    """The twin with the repaired weights; where the repair may change the layers, the repaired model itself."""
    repaired, twin = models
    if patient.cause == "vanishing_gradients":
        return repaired
    return twin if not twin.load_state_dict(repaired.state_dict(), strict=False).missing_keys else repaired


def _task_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean squared error, or mean cross entropy of logits, log-probabilities or probabilities."""
    if y.is_floating_point():
        return (outputs.reshape(-1).double() - y.double()).square().mean()
    outputs = outputs.double()
    sums_to_one = bool((outputs >= 0).all()) and bool(((outputs.sum(1) - 1).abs() < 1e-3).all())
    return F.nll_loss(outputs.log() if sums_to_one else outputs.log_softmax(1), y)


@torch.no_grad()
def _straight(model: nn.Module, patient: Patient) -> bool:
    """Whether the model is affine: what stands between its linear layers may be another, and not nothing."""
    f, x = copy.deepcopy(model).double().eval(), patient.unseen(next(model.parameters()).device)[0].double()
    a, b = x[:128], x[128:]
    return relative_error(f((a + b) / 2).cpu(), (f(a) / 2 + f(b) / 2).cpu()) < 1e-6


@torch.no_grad()
def _unseen_loss(model: nn.Module, patient: Patient, device: torch.device) -> float:
    x, y = patient.unseen(device)
    outputs = model.eval()(x)
    fits = outputs.numel() == len(y) if y.is_floating_point() else outputs.shape == (len(y), int(y.max()) + 1)
    return _task_loss(outputs, y).item() if fits else math.inf


def _for_the_pictures(evidence: dict, ward: list[Patient], device: torch.device) -> dict:
    """For predictions and the figure only."""
    trainer = next(p for p in ward if p.name == "layers in a list").trainer(device)
    owned = ownership(trainer.loss_fn(trainer.model(trainer.inputs), trainer.targets), trainer.model, trainer.optimizer)
    perfect = torch.eye(5)  # five kinds, each row sure of its own
    return {
        "right": sum(evidence[f"{p.name}.named"] == p.cause for p in ward),
        "unseen.losses": torch.stack([_worst_loss(evidence, cause) for cause in CAUSES if cause != "healthy"]),
        "list.share": owned.unregistered_share,
        "softmax.floor": F.cross_entropy(perfect, torch.arange(5)).item(),
    }


def _worst_loss(evidence: dict, cause: str) -> Tensor:
    """Of the patients that have this; nan where one is."""
    losses = [evidence[f"{name}.loss"] for name in SICK if PATIENTS[name][0] == cause]
    return torch.tensor(losses, dtype=torch.float64).max()
