"""Measure lab10: single steps and a run on known weights and batches, distances, and gradients taken after a step."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from breakfix.contract import describe, expect, function
from breakfix.probes.parity import relative_error

PHOTO, WIDTH, SPACE, SHELVES, MEMORY = 24, 48, 16, 6, 32
LOUD = (ArithmeticError, RuntimeError, ValueError, AssertionError)
Batch = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Regime:
    """Pairs in the batch, how far their photos are apart, how many are the same photo twice, the learning rate."""

    pairs: int
    apart: float = 0.1
    twice: int = 0
    lr: float = 0.3


STEPS = {
    "ordinary": Regime(24),
    "small step": Regime(32, lr=0.05),
    "alike": Regime(24, apart=1e-3),
    "a photo twice": Regime(24, twice=3),
    "all twice": Regime(8, twice=8),
}
RUN = [
    Regime(n, twice=twice, lr=0.1)
    for n, twice in ((32, 0), (20, 0), (7, 1), (32, 0), (25, 2), (32, 0), (11, 0), (20, 1))
]
STILL = [Regime(24, lr=0.0), Regime(20, lr=0.0), Regime(7, lr=0.0)]  # nothing moves but the memory, which wraps round
HELD = ("encoder", "shelf", "memory", "penalty")


class Search(nn.Module):
    """The reference architecture."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PHOTO, WIDTH), nn.Tanh(), nn.Linear(WIDTH, SPACE), nn.Tanh())
        self.shelf = nn.Linear(SPACE, SHELVES)
        self.register_buffer("memory", torch.zeros(MEMORY, SPACE))


@dataclass(frozen=True)
class Inputs:
    """The state that every model starts from, batches by regime, those of the run, and rows to take distances of."""

    state: dict[str, Tensor]
    batches: dict[str, Batch]
    run: list[Batch]
    still: list[Batch]
    a: Tensor  # [32, SPACE]: eight ordinary pairs, eight that are 0.001 apart, eight equal, four far apart, four zero
    b: Tensor
    weights: Tensor  # [32]: what the distances are multiplied by before they are added up
    probe: Tensor  # [5, PHOTO], for gradients that are taken after a step


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    state = {n: torch.randn(v.shape, generator=g) * _size(n, v) for n, v in Search().state_dict().items()}
    batches = {name: _batch(regime, g) for name, regime in STEPS.items()}
    run, still = ([_batch(regime, g) for regime in regimes] for regimes in (RUN, STILL))
    return Inputs(state, batches, run, still, *_rows(g), torch.randn(5, PHOTO, generator=g))


def _size(name: str, value: Tensor) -> float:
    return 0.5 if name == "memory" else 0.1 if value.ndim == 1 else value.shape[1] ** -0.5


def _batch(regime: Regime, g: torch.Generator) -> Batch:
    shelves = torch.randint(SHELVES, (regime.pairs,), generator=g)
    photos = torch.randn(regime.pairs, PHOTO, generator=g)
    photos[torch.arange(regime.pairs), shelves] += 1.0
    others = photos + regime.apart * torch.randn(regime.pairs, PHOTO, generator=g)
    places = torch.randperm(regime.pairs, generator=g)[: regime.twice]
    others[places] = photos[places]
    return photos, others, shelves


def _rows(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    a, away = torch.randn(32, SPACE, generator=g), torch.randn(32, SPACE, generator=g)
    size = torch.tensor([1.0] * 8 + [1e-3] * 8 + [0.0] * 8 + [1e4] * 4 + [0.0] * 4).unsqueeze(1)
    a[28:] = 0
    return a, a + size * F.normalize(away, dim=1), 0.5 + torch.rand(32, generator=g)


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build(device) -> nn.Module")
    distance = function(subject, "distance(a, b) -> Tensor")
    train_step = function(subject, "train_step(model, batch, lr) -> float")
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = False
    given, evidence = inputs(seed), {}
    for name, batch in given.batches.items():
        evidence |= _stepped(build, train_step, given, [(batch, STEPS[name].lr)], name, device)
    for name, batches, regimes in ("run", given.run, RUN), ("still", given.still, STILL):
        evidence |= _stepped(build, train_step, given, with_rates(batches, regimes), name, device)
    for part in HELD:
        evidence |= _held(build, train_step, given, part, device)
    for dtype in ("float32", "float64"):
        evidence |= _distances(distance, given, dtype, device)
    return evidence | _nan(build, distance, train_step, given, device) | _for_the_pictures(given, evidence)


def with_rates(batches: list[Batch], regimes: list[Regime]) -> list[tuple[Batch, float]]:
    """Each batch with its learning rate."""
    return [(batch, regime.lr) for batch, regime in zip(batches, regimes, strict=True)]


def _built(build, given: Inputs, device: torch.device) -> nn.Module:
    """The subject's model with our state. Raises Contract."""
    model = build(device)
    expect(isinstance(model, nn.Module), "build", wanted="an nn.Module", got=describe(model))
    try:
        model.load_state_dict(given.state)
    except RuntimeError as error:
        expect(False, "build", wanted="a model that takes today's state", got=f"one that says: {error}")
    return model.to(device)


def _step(train_step, model: nn.Module, batch: Batch, lr: float, device: torch.device) -> float:
    loss = train_step(model, tuple(t.to(device) for t in batch), lr)
    expect(isinstance(loss, float | int), "train_step", wanted="the encoder's loss as a float", got=describe(loss))
    return float(loss)


def flat(state: dict[str, Tensor], part: str) -> Tensor:
    """All values of one part of a state in one row."""
    return torch.cat([v.detach().cpu().flatten() for n, v in sorted(state.items()) if n.partition(".")[0] == part])


def _stepped(
    build, train_step, given: Inputs, steps: list[tuple[Batch, float]], key: str, device: torch.device
) -> dict:
    model = _built(build, given, device)
    losses = [_step(train_step, model, batch, lr, device) for batch, lr in steps]
    state = model.state_dict()
    found = {part: flat(state, part) for part in ("encoder", "shelf")} | {"memory": state["memory"]}
    return {f"{key}.{name}": value for name, value in (found | {"loss": torch.tensor(losses)}).items()}


def _held(build, train_step, given: Inputs, part: str, device: torch.device) -> dict:
    """A gradient through one part of the model, taken after somebody has made a step with the model."""
    model = _built(build, given, device)
    value, by = _through(model, part, given.probe.to(device).requires_grad_())
    (wanted,) = torch.autograd.grad(value, by, retain_graph=True)
    _step(train_step, model, given.batches["ordinary"], STEPS["ordinary"].lr, device)
    try:
        (got,) = torch.autograd.grad(value, by)
    except RuntimeError:  # autograd has seen the edit, and refuses
        return {f"held.{part}.refused": True, f"held.{part}.error": 0.0}
    return {f"held.{part}.refused": False, f"held.{part}.error": relative_error(got.cpu(), wanted.cpu())}


def _through(model: nn.Module, part: str, photos: Tensor) -> tuple[Tensor, Tensor]:
    """A number that depends on one part of the model, and the tensor to take its gradient by."""
    if part == "penalty":
        weight = model.shelf.weight
        return weight.square().sum(), weight
    places = photos[:, :SPACE]
    through = {"encoder": lambda: model.encoder(photos), "shelf": lambda: model.shelf(places)}
    values = through.get(part, lambda: places @ model.memory.T)()
    return values.square().sum(), photos


def _distances(distance, given: Inputs, dtype: str, device: torch.device) -> dict:
    a, b, weights = (t.to(device, getattr(torch, dtype)) for t in (given.a, given.b, given.weights))
    a, b = a.requires_grad_(), b.requires_grad_()
    values = _distance(distance, a, b)
    gradients = torch.autograd.grad((values * weights).sum(), (a, b))
    return {f"distance.{dtype}.value": values, f"distance.{dtype}.gradients": torch.stack(gradients)}


def _distance(distance, a: Tensor, b: Tensor) -> Tensor:
    values = distance(a, b)
    fits = isinstance(values, Tensor) and values.shape == a.shape[:1] and values.is_floating_point()
    expect(fits, "distance", wanted=f"a floating tensor [{len(a)}]", got=describe(values))
    return values


def _nan(build, distance, train_step, given: Inputs, device: torch.device) -> dict:
    """What a photo, and a place, that really hold a nan lead to; an exception is as loud as a nan."""
    photos, others, shelves = given.batches["ordinary"]
    spoiled = photos.clone()
    spoiled[3, 5] = math.nan
    try:
        loss = _step(train_step, _built(build, given, device), (spoiled, others, shelves), 0.1, device)
    except LOUD:
        loss = math.nan
    a = given.a.to(device).clone()
    a[0, 0] = math.nan
    try:
        value = _distance(distance, a, given.b.to(device))[0].item()
    except LOUD:
        value = math.nan
    return {"nan.loss": loss, "nan.distance": value}


# --------------------------------------------------------------------------------------------------- the reference


def reference(given: Inputs, steps: list[tuple[Batch, float]]) -> tuple[Search, list[float], list[dict[str, Tensor]]]:
    """In float64: the model after some steps of gradient descent, the losses before each, and the gradients used."""
    model = Search().double()
    model.load_state_dict(given.state)
    losses, gradients, oldest = [], [], 0
    for batch, lr in steps:
        loss, shelf, places = _losses(model, batch)
        found = _gradients(model, loss, shelf)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= lr * found[name]
            model.memory[(oldest + torch.arange(len(places))) % MEMORY] = places
        oldest = (oldest + len(places)) % MEMORY
        losses.append(loss.item())
        gradients.append(found)
    return model, losses, gradients


def _losses(model: Search, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    photos, others, shelves = (t.double() if t.is_floating_point() else t for t in batch)
    a, b = model.encoder(photos), model.encoder(others)
    scores = torch.cat([(a * b).sum(dim=1, keepdim=True), a @ model.memory.clone().T], dim=1)
    contrast, shelf = F.cross_entropy(scores, torch.zeros_like(shelves)), F.cross_entropy(model.shelf(a), shelves)
    differ = (photos != others).any(dim=1)
    distances = [torch.linalg.vector_norm(x - y) for x, y in zip(a[differ], b[differ], strict=True)]
    return contrast + sum(distances) / len(a) + 0.5 * shelf, shelf, b.detach()


def _gradients(model: Search, loss: Tensor, shelf: Tensor) -> dict[str, Tensor]:
    """The encoder's gradient of its loss and the shelf's of its own, by parameter."""
    found = {}
    for part, value in (("encoder", loss), ("shelf", shelf)):
        named = [(n, p) for n, p in model.named_parameters() if n.startswith(part)]
        grads = torch.autograd.grad(value, [p for _, p in named], retain_graph=True)
        found |= {n: g for (n, _), g in zip(named, grads, strict=True)}
    return found


def step_error(given: Inputs, name: str, part: str, after: Tensor) -> float:
    """How far the step that a part made is from the one that its gradient asks for, relative to that one."""
    lr = STEPS[name].lr
    wanted = -lr * flat(reference(given, [(given.batches[name], lr)])[2][0], part)
    return relative_error(torch.as_tensor(after).double() - flat(given.state, part), wanted)


def _for_the_pictures(given: Inputs, evidence: dict) -> dict:
    """For predictions and the figure only: the checks compute theirs themselves."""
    errors = [step_error(given, name, "encoder", evidence[f"{name}.encoder"]) for name in STEPS]
    return {
        "encoder.step_errors": torch.tensor(errors, dtype=torch.float64),
        "encoder.step_error": errors[0],
        "encoder.nan_weights": int(evidence["a photo twice.encoder"].isnan().sum()),
    }
