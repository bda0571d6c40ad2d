"""Measure lab06: updates of a known model on uneven batches, the bytes they need, and the subject's own model."""

from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from breakfix.contract import describe, expect, function
from breakfix.probes.gradients import Gradients
from breakfix.probes.memory import MIB, Card
from breakfix.probes.parity import relative_error

CLASSES, WIDTH, LENGTH, UNLABELLED = 4, 8, 64, -100
LR, LESSON_LR, SAMPLES = 0.1, 0.05, 2048
GAINS = (0.01, 1.0, 100.0)  # of the wards' devices
LESSONS, LESSON = 120, 24  # updates of the subject's own model, the last quarter of them small; recordings in each
HELD_OUT = 16  # recordings of each ward


@dataclass(frozen=True)
class Regime:
    """A run of batches: recordings in each, how many go in at a time, how many samples each has labelled."""

    recordings: int
    micro: int
    labelled: str  # "all", "uneven" (much in the first half, next to nothing in the second) or "gap" (some have none)
    batches: int = 3


REGIMES = {
    "even": Regime(24, 8, "all"),
    "quarters": Regime(16, 4, "all"),
    "ragged": Regime(19, 8, "all"),
    "uneven": Regime(24, 8, "uneven"),
    "gap": Regime(20, 6, "gap"),
}
PEAKS = {"small": 32, "large": 128}  # recordings of the batches whose peak is counted, PEAK_MICRO at a time
PEAK_MICRO, PEAK_LENGTH, PEAK_WIDTH = 4, 512, 16  # so that a batch is small beside what four recordings need
OWN_MICROS = (1, 3, 8)  # the same update as with the whole batch is demanded of each


class Block(nn.Module):
    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(channels_in, channels_out, kernel_size=5, padding=2, bias=False)
        self.norm = nn.GroupNorm(1, channels_out)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.norm(self.convolution(x)))  # no kink, at which rounding could decide


def reference_model(width: int = WIDTH) -> nn.Module:
    """A model that treats each recording by itself."""
    blocks = [Block(1 if i == 0 else width, width) for i in range(3)]
    return nn.Sequential(*blocks, nn.Conv1d(width, CLASSES, kernel_size=1))


def flat(tensors) -> Tensor:
    """One vector of all the tensors."""
    return torch.cat([t.detach().reshape(-1).cpu() for t in tensors])


def inputs(seed: int) -> dict:
    """Weights of the reference model; batches of every regime, for the peaks, for the own model; places in a vector."""
    g = torch.Generator().manual_seed(seed)
    return {
        "weights": flat(_weight(name, p, g) for name, p in reference_model().named_parameters()),
        "batches": {name: [draw(r.recordings, r.labelled, g) for _ in range(r.batches)] for name, r in REGIMES.items()},
        "own": {labelled: draw(17, labelled, g) for labelled in ("all", "uneven")},
        "lessons": [draw(LESSON, "all", g) for _ in range(LESSONS)],
        "held_out": [draw(HELD_OUT, "all", g, gains=(gain,)) for gain in GAINS],
        "peaks": {name: draw(count, "all", g, PEAK_LENGTH) for name, count in PEAKS.items()},
        "places": torch.rand(SAMPLES, generator=g, dtype=torch.float64),
    }


def _weight(name: str, p: Tensor, g: torch.Generator) -> Tensor:
    drawn = torch.randn(p.shape, generator=g)
    return drawn / p[0].numel() ** 0.5 if p.ndim > 1 else 0.1 * drawn + name.endswith("norm.weight")


def draw(count: int, labelled: str, g: torch.Generator, length: int = LENGTH, gains=GAINS) -> tuple[Tensor, Tensor]:
    """Recordings [count, 1, length], ward by ward, and labels [count, length]."""
    gain = torch.tensor(gains)[torch.randint(len(gains), (count,), generator=g).sort().values].unsqueeze(1)
    classes = torch.randint(CLASSES, (count, length // 16), generator=g).repeat_interleave(16, dim=1)
    pitch = torch.tensor([0.2, 0.5, 0.9, 1.4])[classes]
    signal = torch.sin(pitch * torch.arange(length) + 6.283 * torch.rand(count, 1, generator=g))
    signal += 0.1 * torch.randn(count, length, generator=g)
    ends = _ends(count, labelled, g, length)
    labels = classes.masked_fill(torch.arange(length) >= ends.unsqueeze(1), UNLABELLED)
    return (gain * signal).unsqueeze(1), labels


def _ends(count: int, labelled: str, g: torch.Generator, length: int) -> Tensor:
    """How many samples of each recording are labelled."""
    ends = torch.full((count,), length)
    if labelled != "all":
        ends = torch.randint(length // 2, length, (count,), generator=g)
        ends[count // 2 :] = torch.randint(1, 5, (count - count // 2,), generator=g)
    if labelled == "gap":
        ends[count // 3 : 2 * count // 3 + 1] = 0
    return ends


def load(model: nn.Module, weights: Tensor) -> None:
    """Write a vector of weights into the model's parameters, in place."""
    with torch.no_grad():
        for p, part in zip(model.parameters(), weights.split([p.numel() for p in model.parameters()]), strict=True):
            p.copy_(part.reshape(p.shape))


def measure(subject, seed: int, device: torch.device) -> dict:
    build_model = function(subject, "build_model() -> nn.Module")
    train_step = function(subject, "train_step(model, optimizer, batch, micro) -> float")
    torch.backends.cudnn.allow_tf32 = False  # its three digits would hide which part weighs too much
    drawn, evidence = inputs(seed), {"known.forgotten": _forgotten()}
    for name, regime in REGIMES.items():
        found = _updates(train_step, regime, drawn["weights"], drawn["batches"][name], device)
        evidence |= {f"{name}.{key}": value for key, value in found.items()}
    for name, batch in drawn["peaks"].items():
        evidence[f"peak.{name}"] = peak(train_step, batch, device)
    for name, batch in drawn["own"].items():
        evidence |= _own(build_model, train_step, name, batch, drawn["places"], device)
    return evidence | _lessons(build_model, drawn, device)


def _forgotten() -> str:
    """How the training loss of a small classifier ends without zero_grad, compared with zero_grad, after 60 steps."""
    ends = []
    for forgets in (False, True):
        g = torch.Generator().manual_seed(0)
        x, weights = torch.randn(256, 16, generator=g), torch.zeros(16, CLASSES, requires_grad=True)
        y = (x @ torch.randn(16, CLASSES, generator=g)).argmax(dim=1)
        optimizer = torch.optim.SGD([weights], lr=LR)
        for _ in range(60):
            if not forgets:
                optimizer.zero_grad()
            loss = F.cross_entropy(x @ weights, y)
            loss.backward()
            optimizer.step()
        ends.append(loss.item())
    return "lower" if ends[1] < 0.8 * ends[0] else "higher" if ends[1] > 1.2 * ends[0] else "about the same"


def _updates(train_step, regime: Regime, weights: Tensor, batches: list, device: torch.device) -> dict:
    """One update of the reference model per batch, by plain gradient descent, with a look at it after each."""
    model = reference_model().to(device)
    load(model, weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses, seen = [], [flat(model.parameters())]
    with Gradients(model) as watched:
        for batch in batches:
            losses.append(_step(train_step, model, optimizer, batch, regime.micro, device))
            watched.end_step()
            seen.append(flat(model.parameters()))
    _, wanted = reference_update(weights, batches[0])
    return {
        "losses": torch.tensor(losses, dtype=torch.float64),
        "weights": torch.stack(seen),
        "first_error": relative_error(seen[1] - seen[0], wanted),
        "optimizer_steps": [step.calls for step in watched.steps],
        "gradient_norms": torch.tensor([step.norm for step in watched.steps], dtype=torch.float64),
    }


def reference_update(weights: Tensor, batch: tuple[Tensor, Tensor]) -> tuple[float, Tensor]:
    """Loss and update of the reference model in float64, with the whole batch at once."""
    model = reference_model().double()
    load(model, weights)
    recordings, labels = batch
    loss = F.cross_entropy(model(recordings.double()), labels, ignore_index=UNLABELLED)
    loss.backward()
    return loss.item(), -LR * flat(p.grad for p in model.parameters())


def _step(train_step, model: nn.Module, optimizer, batch: tuple[Tensor, Tensor], micro: int, device) -> float:
    loss = train_step(model, optimizer, tuple(t.to(device) for t in batch), micro)
    expect(isinstance(loss, float | int), "train_step", wanted="the loss as a float", got=describe(loss))
    return float(loss)


def peak(train_step, batch: tuple[Tensor, Tensor], device: torch.device) -> float:
    """MiB alive at the worst moment of two updates of a wider reference model, beside its parameters and the batch."""
    model = reference_model(PEAK_WIDTH).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    batch = tuple(t.to(device) for t in batch)
    with Card(device) as card:
        card.add(model, *batch)
        there = card.in_use
        for _ in range(2):
            _step(train_step, model, optimizer, batch, PEAK_MICRO, device)
            card.end_step()
    return (card.peak.bytes - there) / MIB


def _own(build_model, train_step, name: str, batch: tuple[Tensor, Tensor], places: Tensor, device) -> dict:
    """Elements of the update that the subject's model gets from one batch, by the size of the micro-batches."""
    model, found = _built(build_model).to(device), {}
    for micro in (*OWN_MICROS, len(batch[0])):
        copy = deepcopy(model)
        _step(train_step, copy, torch.optim.SGD(copy.parameters(), lr=LR), batch, micro, device)
        update = flat(_state(copy)) - flat(_state(model))
        found[f"own.{name}.{micro}"] = update[(places * len(update)).long()]
    whole = found[f"own.{name}.{len(batch[0])}"]
    differences = [relative_error(found[f"own.{name}.{micro}"], whole) for micro in OWN_MICROS]
    return found | {f"own.{name}.differences": np.array(differences)}


def _state(model: nn.Module) -> list[Tensor]:
    """What an update may move: parameters, and buffers such as running statistics."""
    return [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]


def _built(build_model) -> nn.Module:
    torch.manual_seed(0)
    model = build_model()
    fits = isinstance(model, nn.Module) and any(p.requires_grad for p in model.parameters())
    expect(fits, "build_model", wanted="an nn.Module with parameters to train", got=describe(model))
    shape = tuple(model(torch.zeros(2, 1, LENGTH)).shape)
    wanted = (2, CLASSES, LENGTH)
    expect(shape == wanted, "build_model", wanted=f"a module that makes {wanted} of [2, 1, {LENGTH}]", got=str(shape))
    return model.train()


def _lessons(build_model, drawn: dict, device: torch.device) -> dict:
    """The subject's model, trained by the loop below: its logits of recordings that it has not seen, ward by ward."""
    model = _built(build_model).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LESSON_LR, momentum=0.9)
    for i, batch in enumerate(drawn["lessons"]):
        optimizer.param_groups[0]["lr"] = LESSON_LR if i < 3 * LESSONS // 4 else LESSON_LR / 10
        plain_accumulation(model, optimizer, tuple(t.to(device) for t in batch), micro=8)
    model.eval()
    with torch.no_grad():
        logits = torch.stack([model(recordings.to(device)).float() for recordings, _ in drawn["held_out"]])
    return {"lessons.logits": logits}


def plain_accumulation(model: nn.Module, optimizer, batch: tuple[Tensor, Tensor], micro: int) -> float:
    """One update as it should be, on a batch in which something is labelled."""
    recordings, labels = batch
    optimizer.zero_grad()
    for some, wanted in zip(recordings.split(micro), labels.split(micro), strict=True):
        loss = F.cross_entropy(model(some), wanted, ignore_index=UNLABELLED, reduction="sum")
        (loss / (labels != UNLABELLED).sum()).backward()
    optimizer.step()
    return 0.0  # nobody asks for its loss
