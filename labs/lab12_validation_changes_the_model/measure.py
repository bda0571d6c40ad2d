"""Measure lab12: validate a known model in several ways, train it with and without validation, and see what is left."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import Dataset, TensorDataset

from breakfix.contract import describe, expect, function
from breakfix.probes.buffers import watch
from breakfix.probes.parity import relative_error

KINDS, FEATURES, P = 5, 32, 0.5
BATCH, PHOTOS = 32, 65  # of validation: with 32 or 64 in a batch, one is left over
EPOCHS, PAIRS, TORN_AT, REPEATS = 5, 24, 40, 8
SIZES = {"in batches of 64": 64, "one by one": 1}
TRAINING = {"even": 128, "left over": 97, "short batch": 110}  # photos: none, one and fourteen over
MODES = ("training", "mixed", "evaluating")


class Inspector(nn.Module):
    """The reference architecture."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, FEATURES, 3, padding=1, bias=False)
        front = (first, nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        back = (second, nn.BatchNorm2d(FEATURES), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.backbone = nn.Sequential(*front, *back)
        self.neck, self.head = nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, KINDS)

    def forward(self, photos: Tensor) -> Tensor:
        return self.head(self.neck(self.backbone(photos)))


class Centre(nn.Module):
    """Takes a running mean of its own off what comes in; in training it also keeps it up to date."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean += 0.2 * (x.detach().mean(dim=(0, 2, 3), keepdim=True) - self.mean)
        return x - self.mean


class Stranger(nn.Module):
    """Another line's classifier: parts of its own making, and a dropout that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.centre, self.conv, self.norm = Centre(3), nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.head = nn.Linear(6, KINDS)

    def forward(self, photos: Tensor) -> Tensor:
        x = self.norm(self.conv(self.centre(photos))).relu().mean(dim=(2, 3))
        return self.head(F.dropout(x, 0.3, self.training))


@dataclass(frozen=True)
class Inputs:
    """States of both models, photos and kinds: to validate, to train on by regime, and pairs of one batch each."""

    published: dict[str, Tensor]
    stranger: dict[str, Tensor]
    validation: TensorDataset
    training: dict[str, TensorDataset]
    pairs: list[TensorDataset]


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    tint = torch.randn(KINDS, 3, 1, 1, generator=g)
    return Inputs(
        _drawn(Inspector(), g),
        _drawn(Stranger(), g),
        _photos(PHOTOS, tint, g, lighter=1.0),
        {name: _photos(count, tint, g) for name, count in TRAINING.items()},
        [TensorDataset(torch.randn(2, 3, 16, 16, generator=g), torch.tensor([0, 1])) for _ in range(PAIRS)],
    )


def _photos(count: int, tint: Tensor, g: torch.Generator, lighter: float = 0.0) -> TensorDataset:
    kinds = torch.randint(KINDS, (count,), generator=g)
    return TensorDataset(0.5 + lighter + tint[kinds] + torch.randn(count, 3, 16, 16, generator=g), kinds)


def _drawn(model: nn.Module, g: torch.Generator) -> dict[str, Tensor]:
    """A state for `model`, as if it had been trained elsewhere."""
    state = {}
    for name, value in model.state_dict().items():
        if value.ndim > 1:
            state[name] = torch.randn(value.shape, generator=g) * (2 / max(value[0].numel(), 1)) ** 0.5
        elif name.endswith(("weight", "running_var")):
            state[name] = 0.5 + torch.rand(value.shape, generator=g)
        else:
            state[name] = 0.3 * torch.randn(value.shape, generator=g) if value.ndim else value + 5000
    return state


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build(device) -> tuple[nn.Module, Optimizer]")
    train_epoch = function(subject, "train_epoch(model, optimizer, dataset, batch_size) -> float")
    evaluate = function(subject, "evaluate(model, dataset, batch_size) -> tuple[float, Tensor]")
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    given = inputs(seed)
    bench = Bench(build, train_epoch, evaluate, given, device, seed)
    evidence = {}
    for mode in MODES:
        evidence |= _validated(bench, bench.model(mode)[0], BATCH, mode)
    for name, size in SIZES.items():
        evidence |= _validated(bench, bench.model("training")[0], size, name)
    evidence |= _validated(bench, _stranger(bench), BATCH, "another model")
    evidence |= _torn(bench) | _repeated(bench) | _dropped(bench)
    for name in TRAINING:
        evidence |= _trained(bench, name, validations=0, key=f"{name}, never validated")
        evidence |= _trained(bench, name, validations=2, key=f"{name}, validated")
    return evidence | {"features.moved": evidence["even, never validated.features_moved"]}


@dataclass(frozen=True)
class Bench:
    """The subject's three functions and what they are tried on."""

    build: object
    train_epoch: object
    evaluate: object
    given: Inputs
    device: torch.device
    seed: int

    def model(self, mode: str = "") -> tuple[nn.Module, torch.optim.Optimizer]:
        """A model with the published state, and its optimizer; in one of MODES, or as build leaves it."""
        made = self.build(self.device)
        pair = isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)
        expect(pair, "build", wanted="an nn.Module and its optimizer", got=describe(made))
        model, optimizer = made
        try:
            model.load_state_dict(self.given.published)
        except RuntimeError as error:
            expect(False, "build", wanted="a model that takes the published state", got=f"one that says: {error}")
        model.to(self.device)
        if mode:
            _set(model, mode, self.seed)
        return model, optimizer


def _set(model: nn.Module, mode: str, seed: int) -> None:
    """Every part training, every part evaluating, or (`mixed`) each part as the seed decides."""
    g = torch.Generator().manual_seed(seed)
    for part in model.modules():
        part.training = mode == "training" or (mode == "mixed" and bool(torch.rand(1, generator=g) < 0.5))


def _stranger(bench: Bench) -> nn.Module:
    model = Stranger()
    model.load_state_dict(bench.given.stranger)
    _set(model, "mixed", bench.seed)
    model.training = model.centre.training = True
    return model.to(bench.device)


def vector(state: dict[str, Tensor]) -> Tensor:
    """All values of a state in one row, but for the counts of batches, which not every kind of layer keeps."""
    return torch.cat([state[name].detach().cpu().float().flatten() for name in _counted(state)])


def _counted(state: dict[str, Tensor]) -> list[str]:
    return sorted(name for name in state if not name.endswith("num_batches_tracked"))


def _validated(bench: Bench, model: nn.Module, size: int, key: str) -> dict:
    """One validation: its answers, and what it has changed in the model."""
    torch.manual_seed(bench.seed)
    found = {"raised": "", "loss": float("nan"), "answers": torch.zeros(0, KINDS)}
    with watch(model) as seen:
        try:
            loss, answers = _answers(bench, model, bench.given.validation, size)
            found |= {"loss": float(loss), "answers": answers.detach().float()}
        except ValueError as error:  # what a layer raises for a batch that it cannot handle
            found["raised"] = type(error).__name__
    return {f"{key}.{name}": value for name, value in (found | _changes(seen, model)).items()}


def _answers(bench: Bench, model: nn.Module, dataset: Dataset, size: int) -> tuple[float, Tensor]:
    made = bench.evaluate(model, dataset, size)
    pair = isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Tensor)
    fits = pair and isinstance(made[0], float | int | Tensor) and made[1].ndim == 2
    expect(fits, "evaluate", wanted=f"the loss and the logits [N, {KINDS}]", got=describe(made))
    return made


def _changes(seen, model: nn.Module) -> dict:
    return {
        "moved": [str(m) for m in seen.moved],
        "moved_count": len(seen.moved),
        "switched": [str(s) for s in seen.switched],
        "grad_enabled": torch.is_grad_enabled(),
        "state": vector(model.state_dict()),
    }


class Torn(Dataset):
    """The validation photos, one of which cannot be read."""

    def __init__(self, whole: Dataset) -> None:
        self.whole = whole

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, i: int):
        if i == TORN_AT:
            raise OSError(f"photo {i} is truncated")
        return self.whole[i]


def _torn(bench: Bench) -> dict:
    """A validation that meets a photo which cannot be read, with parts of the model in either mode."""
    model, _ = bench.model("mixed")
    raised = ""
    try:
        with watch(model) as seen:
            bench.evaluate(model, Torn(bench.given.validation), BATCH)
    except OSError as error:
        raised = type(error).__name__
    found = {"torn.raised": raised} | {f"torn.{name}": value for name, value in _changes(seen, model).items()}
    torch.set_grad_enabled(True)  # for what comes next, whatever the subject has left
    return found


def _repeated(bench: Bench) -> dict:
    """What production would lose and answer, before the first and after each of several validations."""
    model, _ = bench.model("training")
    found = [_production(bench, model)]
    for _ in range(REPEATS):
        bench.evaluate(model, bench.given.training["even"], BATCH)
        found.append(_production(bench, model))
    moved = [relative_error(answers, found[0][1]) for _, answers in found]
    losses = [loss for loss, _ in found]
    return {
        "production.loss": torch.tensor(losses, dtype=torch.float64),
        "production.moved": torch.tensor(moved, dtype=torch.float64),
    }


@torch.no_grad()
def _production(bench: Bench, model: nn.Module) -> tuple[float, Tensor]:
    """The loss and the logits that this model would have in production."""
    photos, kinds = (t.to(bench.device) for t in bench.given.validation.tensors)
    logits = copy.deepcopy(model).eval()(photos)
    return F.cross_entropy(logits, kinds).item(), logits.cpu()


def _dropped(bench: Bench) -> dict:
    """The share of features that one update of the head, on a batch of two photos, did not see at all."""
    untouched = []
    for pair in bench.given.pairs:
        model, optimizer = bench.model()
        bench.train_epoch(model, optimizer, pair, 2)
        moved = model.state_dict()["head.weight"].cpu() != bench.given.published["head.weight"]
        untouched.append((~moved.any(dim=0)).float().mean())
    return {"pairs.untouched": torch.stack(untouched).mean()}


def _trained(bench: Bench, name: str, validations: int, key: str) -> dict:
    """Some epochs of training, each followed by so many validations."""
    model, optimizer = bench.model()
    before = copy.deepcopy(model.get_submodule("backbone")).eval()
    found, losses, updates = {"raised": ""}, [], []
    counting = register_optimizer_step_post_hook(lambda *_: updates.append(1))
    try:
        for epoch in range(EPOCHS):
            torch.manual_seed(bench.seed + epoch)  # so that what a validation draws is not what tells runs apart
            losses.append(float(bench.train_epoch(model, optimizer, bench.given.training[name], BATCH)))
            for _ in range(validations):
                bench.evaluate(model, bench.given.validation, BATCH)
    except ValueError as error:
        found["raised"] = type(error).__name__
    finally:
        counting.remove()
    found["updates"] = len(updates)
    found |= {"losses": torch.tensor(losses, dtype=torch.float64), "state": vector(model.state_dict())}
    found["features_moved"] = _moved(before, model.get_submodule("backbone"), bench)
    return {f"{key}.{name}": value for name, value in found.items()}


@torch.no_grad()
def _moved(before: nn.Module, after: nn.Module, bench: Bench) -> float:
    photos = bench.given.validation.tensors[0].to(bench.device)
    return relative_error(copy.deepcopy(after).eval()(photos).cpu(), before(photos).cpu())
