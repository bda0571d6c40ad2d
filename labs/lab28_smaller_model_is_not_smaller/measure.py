"""Measure lab28: prune, tune and ship a trained reader, and open the file as the meters do; then ship three known ones.

On a CUDA device the model is tuned and answers on the card; the meters have none (not run on a GPU yet).
"""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune as pruning
from torch.utils.data import TensorDataset

from breakfix.contract import Contract, describe, expect, expect_tensors, function
from breakfix.probes.flops import flop_counter

WIDTHS = (16, 32, 64)  # neurons of the hidden layers
KEPT = (4, 8, 16)  # of which so many are alive in the known models that have dead ones
HIDDEN = ("features.0", "features.2", "classify.0")
READERS = ("features.2", "classify.0", "classify.2")  # who reads each of them
PLACES = (1, 8, 1)  # columns of the reader that belong to one neuron
BUDGET = 0.35  # of the bytes and the multiply-adds of today; half of each layer costs 0.29 and 0.26
TRAINING, VALIDATION, EPOCHS = 2000, 1000, 8
FAINT = 2.0**-20  # of the weights into or from a neuron that counts nevertheless
KNOWN = ("nothing reaches", "nobody reads", "all alive")
STROKES = {"a": (1, 2, 2, 6), "b": (2, 5, 6, 7), "c": (6, 9, 6, 7), "d": (9, 10, 2, 6), "e": (6, 9, 1, 2)}
STROKES |= {"f": (2, 5, 1, 2), "g": (5, 6, 2, 6)}  # top, bottom, left, right
DIGITS = ("abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg")


class Reader(nn.Module):
    """What the meters run: the network of today, as wide as the file says."""

    def __init__(self, first: int, second: int, third: int) -> None:
        super().__init__()
        convolutions = nn.Conv2d(1, first, 3), nn.ReLU(), nn.Conv2d(first, second, 3), nn.ReLU()
        self.features = nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten())
        self.classify = nn.Sequential(nn.Linear(8 * second, third), nn.ReLU(), nn.Linear(third, 10))

    def forward(self, photos: Tensor) -> Tensor:
        return self.classify(self.features(photos))


@dataclass(frozen=True)
class Inputs:
    """Photos [N, 1, 12, 8] with their digits, and the states of the known models by name."""

    training: TensorDataset
    validation: TensorDataset
    known: dict[str, dict[str, Tensor]]


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    return Inputs(_photos(TRAINING, g), _photos(VALIDATION, g), {kind: _known(kind, g) for kind in KNOWN})


def _photos(count: int, g: torch.Generator) -> TensorDataset:
    """Digits of seven strokes: not quite centred, of any contrast, noisy."""
    glyphs = torch.zeros(10, 12, 8)
    for digit, strokes in enumerate(DIGITS):
        for top, bottom, left, right in (STROKES[stroke] for stroke in strokes):
            glyphs[digit, top:bottom, left:right] = 1
    digits = torch.randint(10, (count,), generator=g)
    shifts = torch.randint(-1, 2, (count, 2), generator=g).tolist()
    images = torch.stack([torch.roll(glyphs[d], tuple(s), (0, 1)) for d, s in zip(digits, shifts, strict=True)])
    contrast, light = (torch.rand(count, 1, 1, generator=g) for _ in range(2))
    noise = 0.2 * torch.randn(images.shape, generator=g)
    return TensorDataset(((0.4 + 0.6 * contrast) * (images + noise) + 0.5 * light)[:, None], digits)


def _known(kind: str, g: torch.Generator) -> dict[str, Tensor]:
    """A state in which each hidden layer has dead neurons at random places, or (`all alive`) faint and strong ones."""
    state = {}
    for name, value in Reader(*WIDTHS).state_dict().items():
        scale = (2 / value[0].numel()) ** 0.5 if value.ndim > 1 else 0.5
        state[name] = scale * torch.randn(value.shape, generator=g)
    for layer, reader, alive, places in zip(HIDDEN, READERS, KEPT, PLACES, strict=True):
        rows, columns = state[f"{layer}.weight"], state[f"{reader}.weight"]
        order = torch.randperm(len(rows), generator=g)
        read = columns.unflatten(1, (len(rows), places))  # a view
        if kind == "nothing reaches":
            rows[order[alive:]] = 0.0  # what is left of such a neuron is its bias
        elif kind == "nobody reads":
            read[:, order[alive:]] = 0.0
        else:  # every other neuron is faint and well heard, or loud and hardly heard; powers of two do not round
            for part, factor in ((order[alive::2], FAINT), (order[alive + 1 :: 2], 1 / FAINT)):
                rows[part] *= factor
                state[f"{layer}.bias"][part] *= factor
                read[:, part] /= factor
    return state


def measure(subject, seed: int, device: torch.device) -> dict:
    bench = Bench(
        function(subject, "build_model() -> nn.Module"),
        function(subject, "prune(model) -> nn.Module"),
        function(subject, "fine_tune(model, dataset, epochs) -> None"),
        function(subject, "ship(model, path) -> None"),
        inputs(seed),
        seed,
        device,
    )
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    dense = _dense(bench)
    with TemporaryDirectory() as folder:
        path = Path(folder, "dense.pt")
        torch.save(dense.state_dict(), path)
        today = {"today.bytes": path.stat().st_size, "today.work": work(dense)}
        evidence = _pruned(bench, dense, Path(folder, "pruned.pt"))
        for number, kind in enumerate(KNOWN):
            evidence |= _shipped(bench, _with(bench, bench.given.known[kind]), Path(folder, f"{number}.pt"), kind)
    return evidence | today | _summary(evidence, today) | {"after_a_step": _zeros_after_a_step(bench, dense)}


@dataclass(frozen=True)
class Bench:
    """The subject's four functions and what they are tried on."""

    build_model: object
    prune: object
    fine_tune: object
    ship: object
    given: Inputs
    seed: int
    device: torch.device


def work(model: nn.Module) -> int:
    """Multiply-adds per photo, of convolutions and matrix products."""
    device = next(model.parameters()).device
    with flop_counter() as counter, torch.no_grad():
        model(torch.zeros(1, 1, 12, 8, device=device))
    return counter.get_total_flops() // 2


def _dense(bench: Bench) -> nn.Module:
    """A reader of today's widths, trained by us."""
    torch.manual_seed(bench.seed)
    model, (photos, digits) = Reader(*WIDTHS), bench.given.training.tensors
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(photos)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(photos[batch]), digits[batch]).backward()
            optimizer.step()
    return model


def _with(bench: Bench, state: dict[str, Tensor]) -> nn.Module:
    """The subject's model with this state."""
    model = bench.build_model()
    expect(isinstance(model, nn.Module), "build_model", wanted="an nn.Module", got=describe(model))
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    wanted = {name: tuple(value.shape) for name, value in state.items()}
    expect_tensors(shapes, wanted, "build_model", "a model with the weights of today, by name and shape")
    model.load_state_dict(state)
    return model.to(bench.device)


# ------------------------------------------------------------------------------------------------------ the pipeline


def _pruned(bench: Bench, dense: nn.Module, path: Path) -> dict:
    """Prune and tune the trained reader, counting what is not zero, and ship it."""
    torch.manual_seed(bench.seed + 1)
    model = bench.prune(_with(bench, dense.state_dict()))
    expect(isinstance(model, nn.Module), "prune", wanted="the model", got=describe(model))
    model.to(bench.device)
    counts, tensors = [_alive(dense), _alive(model)], bench.given.training.tensors
    training = TensorDataset(*(t.to(bench.device) for t in tensors))
    for epochs in (1, EPOCHS - 2):
        bench.fine_tune(model, training, epochs)
        counts.append(_alive(model))
    bench.fine_tune(model, training, 1)  # shipped as this leaves it, before anything has been run
    return _shipped(bench, model, path, "pruned") | {"alive": np.array(counts), "pruned.model_work": work(model)}


@torch.no_grad()
def _alive(model: nn.Module) -> int:
    """Weights of the hidden layers that are not zero, as the model uses them."""
    model(torch.zeros(1, 1, 12, 8, device=next(model.parameters()).device))  # a mask may be applied just there
    try:
        layers = [model.get_submodule(name) for name in HIDDEN]
    except AttributeError as error:
        raise Contract(f"prune must return a model whose layers have the names of today: {error}") from None
    return sum(int((layer.weight != 0).sum()) for layer in layers)


def _shipped(bench: Bench, model: nn.Module, path: Path, key: str) -> dict:
    """Ship `model`; what the file weighs, what the meters make of it, and what the model itself answers."""
    bench.ship(model, path)
    if not path.is_file():
        raise Contract("ship must write the file that it is told to; there is none")
    photos = bench.given.validation.tensors[0]
    model.eval()
    with torch.no_grad():
        answers = model(photos.to(bench.device))
    found = {"bytes": path.stat().st_size, "answers": answers.float().cpu()} | opened(path, photos)
    return {f"{key}.{name}": value for name, value in found.items()}


def opened(path: Path, photos: Tensor) -> dict:
    """What the meters make of a file: the names, what refuses it, its widths, multiply-adds and logits."""
    found = {"names": [], "refused": "no", "work": float("nan"), "logits": torch.zeros(0, 10), "widths": []}
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        found["names"] = sorted(map(str, state))
        plain = all(t.dtype == torch.float32 and t.layout == torch.strided for t in state.values())
        if not plain:
            raise TypeError("the meters compute in dense float32")
        found["widths"] = [len(state[f"{layer}.bias"]) for layer in HIDDEN]
        model = Reader(*found["widths"])
        model.load_state_dict(state)
    except Exception as error:  # of any kind: it stands for a meter that does not start
        return found | {"refused": type(error).__name__}
    with torch.no_grad():
        return found | {"work": work(model), "logits": model.eval()(photos)}


# ------------------------------------------------------------------------------------------------------- what to show


def _summary(evidence: dict, today: dict) -> dict:
    """Bytes, multiply-adds and weights that are not zero, each against today's."""
    ratios = [
        evidence["pruned.bytes"] / today["today.bytes"],
        evidence["pruned.model_work"] / today["today.work"],
        evidence["alive"][-1] / evidence["alive"][0],
    ]
    names = ("ratio.bytes", "ratio.work", "ratio.alive")
    return dict(zip(names, map(float, ratios), strict=True)) | {"ratios": np.array(ratios), "budget": BUDGET}


def _zeros_after_a_step(bench: Bench, dense: nn.Module) -> float:
    """Masks of 90 % made permanent at once, then one step of SGD: the share of zeros that is left."""
    layers = [dense.get_submodule(name) for name in HIDDEN]
    pruning.global_unstructured([(layer, "weight") for layer in layers], pruning.L1Unstructured, amount=0.9)
    for layer in layers:
        pruning.remove(layer, "weight")
    optimizer = torch.optim.SGD(dense.parameters(), lr=0.01)
    photos, digits = (t[:64] for t in bench.given.training.tensors)
    optimizer.zero_grad()
    F.cross_entropy(dense(photos), digits).backward()
    optimizer.step()
    zeros = torch.cat([layer.weight.flatten() == 0 for layer in layers])
    return zeros.float().mean().item()
