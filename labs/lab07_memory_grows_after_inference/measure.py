"""Measure lab07: serve in every way there is, keep what comes, look at the caller's modes; tune after each way."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, BrokenBarrierError
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from breakfix.contract import describe, expect, expect_tensors, function
from breakfix.probes.lineage import alive, held
from breakfix.probes.memory import Card

CLASSES, TOP, STEPS, RATE = 5, 10, 10, 0.1
IMAGES, SIDE = 4, 160  # of a batch
BATCHES, ROUNDS = 8, 4
SHIFT = 40  # batches
CAMERAS = ("front", "back", "lid")
WARMED, NEW = "front", "back"  # a camera that was warmed up, and one that comes while the line is running
TIMES = {"warmed_up": 2, "detected": 1, "in_all": 1, "streamed": 1, "tuning": 1}  # by how a camera was first met
PATIENCE = 5.0  # seconds that cameras wait for one another
KIB, MIB = 2**10, 2**20


class Corrections(NamedTuple):
    """What an operator says of one place of each image."""

    places: Tensor
    labels: Tensor
    boxes: Tensor


class Detector(nn.Module):
    """The reference architecture."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Conv2d(3, 16, 4, stride=4), nn.ReLU(), nn.Conv2d(16, 4 + CLASSES, 1)
        self.backbone = nn.Sequential(*layers).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(4))
        self.calibrations = nn.ModuleDict({camera: _identity() for camera in CAMERAS})

    def forward(self, images: Tensor, camera: str) -> tuple[Tensor, Tensor]:
        raw = self.backbone(images).flatten(2).transpose(1, 2)
        return raw[..., :4], self.calibrations[camera](raw[..., 4:])


def _identity() -> nn.Linear:
    layer = nn.Linear(CLASSES, CLASSES, bias=False)
    nn.init.eye_(layer.weight)
    return layer


def inputs(seed: int) -> dict:
    """Images of each camera, an operator's corrections, and the weights of the backbone and the scale."""
    g = torch.Generator().manual_seed(seed)
    images = {camera: torch.randn(BATCHES, IMAGES, 3, SIDE, SIDE, generator=g) for camera in CAMERAS}
    places = (SIDE // 4) ** 2
    corrections = Corrections(
        torch.randint(places, (IMAGES,), generator=g),
        torch.randint(CLASSES, (IMAGES,), generator=g),
        (2 * torch.rand(IMAGES, 4, generator=g)).exp(),
    )
    weights = {name: _drawn(p.shape, g) for name, p in sorted(Detector().named_parameters()) if "backbone" in name}
    weights["scale"] = 0.5 + torch.rand(4, generator=g)
    return {"images": images, "corrections": corrections, "weights": weights}


def _drawn(shape: torch.Size, g: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=g) * (1 / shape[1:].numel() ** 0.5 if len(shape) > 1 else 0.1)


@torch.no_grad()
def set_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Write the secret weights into the model's own tensors."""
    for name, t in model.state_dict().items():
        if name in weights:
            t.copy_(weights[name])


def tuned(model: nn.Module, camera: str) -> Tensor:
    """[29] float32: the scale, then the camera's calibration."""
    named, wanted = model.state_dict(), ("scale", f"calibrations.{camera}.weight")
    expect(all(key in named for key in wanted), "tune", wanted=f"with {' and '.join(wanted)} in the model", got="none")
    return torch.cat([named[key].reshape(-1).float().cpu() for key in wanted])


def reference_detect(model: Detector, images: Tensor, camera: str) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes, scores and labels, as they should be."""
    with torch.no_grad():
        offsets, logits = model(images, camera)
        scores, labels = logits.softmax(-1).max(-1)
        scores, places = scores.topk(TOP)
        boxes = (offsets * model.scale).exp().gather(1, places.unsqueeze(-1).expand(-1, -1, 4))
        return boxes, scores, labels.gather(1, places)


def reference_tune(model: Detector, images: Tensor, camera: str, corrections: Corrections) -> list[float]:
    """The loss of each step, as it should be."""
    optimizer = torch.optim.SGD([model.scale, *model.calibrations[camera].parameters()], lr=RATE)
    at, losses = (torch.arange(IMAGES, device=images.device), corrections.places), []
    for _ in range(STEPS):
        offsets, logits = model(images, camera)
        loss = F.cross_entropy(logits[at], corrections.labels)
        loss = loss + F.mse_loss(offsets[at] * model.scale, corrections.boxes.log())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def measure(subject, seed: int, device: torch.device) -> dict:
    evidence = _known()
    service = Service(subject, inputs(seed), device)
    for name, scenario in (
        ("shift", service.a_shift),
        ("detect", service.detected),
        ("all", service.detected_in_all),
        ("stream", service.streamed),
        ("caller", service.left_alone),
    ):
        with _clean_modes():
            evidence |= {f"{name}.{key}": value for key, value in scenario().items()}
    for name in service.ways:
        with _clean_modes():
            evidence |= {f"tune.{name}.{key}": value for key, value in service.tuned_after(name).items()}
    return evidence


@contextmanager
def _clean_modes() -> Iterator[None]:
    """Gradients on and inference mode off, whatever was left behind before."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def modes() -> str:
    """What the present thread does about gradients."""
    if torch.is_inference_mode_enabled():
        return "inference mode"
    return "gradients" if torch.is_grad_enabled() else "no gradients"


class Service:
    """The subject's functions, and what they are called with."""

    def __init__(self, subject, given: dict, device: torch.device):
        self.build = function(subject, "build(device) -> nn.Module")
        self.warm_up = function(subject, "warm_up(model, cameras, image) -> None")
        self.detect = function(subject, "detect(model, images, camera) -> (boxes, scores, labels)")
        self.detect_all = function(subject, "detect_all(model, sources) -> dict[str, (boxes, scores, labels)]")
        self.stream = function(subject, "stream(model, batches, camera) -> Iterator[(boxes, scores, labels)]")
        self.tune = function(subject, "tune(model, images, camera, places, labels, boxes) -> list[float]")
        self.device, self.weights = device, {k: v.to(device) for k, v in given["weights"].items()}
        self.images = {camera: batches.to(device) for camera, batches in given["images"].items()}
        self.corrections = Corrections(*(t.to(device) for t in given["corrections"]))
        self.ways: dict[str, Callable] = {
            "warmed_up": self._warmed_up,
            "detected": self._detected,
            "in_all": self._in_all,
            "streamed": self._streamed,
            "tuning": self._tuning,
        }

    def model(self) -> nn.Module:
        """A new one with our weights, warmed up for one camera. Raises Contract."""
        model = self.build(self.device)
        expect(isinstance(model, nn.Module), "build", wanted="an nn.Module", got=describe(model))
        wanted = _shapes(Detector())
        found = {name: shape for name, shape in _shapes(model).items() if name in wanted}  # it may have others too
        expect_tensors(found, wanted, "build", "a model with the tensors of today, by name and shape")
        set_weights(model, self.weights)
        self.warm_up(model, [WARMED], self.images[WARMED][0, :1])
        return model

    # ------------------------------------------------------------------------------------------------ what is kept

    def a_shift(self) -> dict:
        """Many batches, every result kept: what memory grows by, counted storage by storage."""
        model, kept, in_use = self.model(), [], []
        with Card(self.device) as card:
            card.add(model, *self.images.values())
            before = card.in_use
            for i in range(SHIFT):
                kept.append(_checked(self.detect(model, self.images[WARMED][i % BATCHES], WARMED), "detect"))
                in_use.append(card.in_use - before)
        grown = (in_use[-1] - in_use[0]) / (SHIFT - 1) / IMAGES / KIB
        return {"in_use_mib": torch.tensor(in_use) / MIB, "grown_kib_per_image": grown}

    def detected(self) -> dict:
        """Batch by batch, of the camera that was warmed up and of one that is new."""
        model, kept, looks = self.model(), [], []
        for i in range(BATCHES):
            for camera in (WARMED, NEW):
                kept.append(_checked(self.detect(model, self.images[camera][i], camera), "detect"))
            looks.append(held(kept, beside=model))
        return _looked(looks, kept, 2 * IMAGES) | _answers(kept[:2])

    def detected_in_all(self) -> dict:
        """Rounds of all cameras at once, where each source waits until all the others are read too."""
        try:
            return {"at_the_same_time": True} | self._rounds(Barrier(len(CAMERAS), timeout=PATIENCE))
        except BrokenBarrierError:
            return {"at_the_same_time": False} | self._rounds(None)

    def _rounds(self, barrier: Barrier | None) -> dict:
        model, kept, looks = self.model(), [], []
        sources = {camera: self._source(camera, barrier) for camera in CAMERAS}
        for _ in range(ROUNDS):
            found = self.detect_all(model, sources)
            fits = isinstance(found, dict) and list(found) == list(CAMERAS)
            expect(fits, "detect_all", wanted=f"a dict with {', '.join(CAMERAS)}", got=describe(found))
            kept += [_checked(found[camera], "detect_all") for camera in CAMERAS]
            looks.append(held(kept, beside=model))
        return _looked(looks, kept, len(CAMERAS) * IMAGES) | _answers(kept[: len(CAMERAS)])

    def _source(self, camera: str, barrier: Barrier | None = None) -> Iterator[Tensor]:
        for images in self.images[camera]:
            if barrier:
                barrier.wait()
            yield images

    def streamed(self) -> dict:
        """What is kept of a stream, how far it reads ahead, and the caller's mode while it runs."""
        model, kept, looks, seen, ahead, read = self.model(), [], [], [], [], []

        def batches():
            for images in self.images[NEW]:
                read.append(1)
                yield images

        for found in self.stream(model, batches(), NEW):
            kept.append(_checked(found, "stream"))
            looks.append(held(kept, beside=model))
            seen.append(modes())
            ahead.append(len(read) - len(kept))
        body = seen[0] if len(set(seen)) == 1 else " and ".join(sorted(set(seen)))
        return {"ahead": max(ahead, default=0), "body": body} | _looked(looks, kept, IMAGES) | _answers(kept)

    # ------------------------------------------------------------------------------------ what the caller finds again

    def left_alone(self) -> dict:
        """The caller's mode after everything that can be done with a stream, and inside modes of the caller's own."""
        model, found = self.model(), {}
        found["after_warm_up"] = modes()
        for _ in self.stream(model, self._source(NEW), NEW):
            pass
        found["after_the_last"] = modes()
        with _clean_modes():
            half = self.stream(model, self._source(NEW), NEW)
            next(half)
            found["after_half"] = modes()
            half = None
        with _clean_modes():
            for _ in zip(*(self.stream(model, self._source(camera), camera) for camera in CAMERAS), strict=False):
                pass
            found["after_two_at_once"] = modes()
        with _clean_modes(), torch.no_grad():
            found["in_no_grad"] = self._mode_after_serving(model)
        with _clean_modes(), torch.inference_mode():
            found["in_inference_mode"] = self._mode_after_serving(model)
        return found

    def _mode_after_serving(self, model: nn.Module) -> str:
        self.detect(model, self.images[NEW][0], NEW)
        self.detect_all(model, {camera: self._source(camera) for camera in CAMERAS})
        stream = self.stream(model, self._source(NEW), NEW)
        next(stream)
        seen = {modes()}
        for _ in stream:
            seen.add(modes())
        return " and ".join(sorted(seen | {modes()}))

    # --------------------------------------------------------------------------------------------- what tuning does

    def tuned_after(self, way: str) -> dict:
        """Tune a camera that was first met in one of several ways; then detect with it, and with another one."""
        model = self.model()
        before = torch.cat([self.weights["scale"].cpu(), torch.eye(CLASSES).reshape(-1)])
        camera, losses = self.ways[way](model)
        after = tuned(model, camera)
        other = next(c for c in CAMERAS if c != camera)
        answers = [_checked(self.detect(model, self.images[c][0], c), "detect") for c in (camera, other)]
        return {
            "camera": camera,
            "losses": torch.tensor(losses, dtype=torch.float64),
            "change": after - before,
            "moved": int(bool((after[:4] != before[:4]).any())) + int(bool((after[4:] != before[4:]).any())),
            **_answers(answers),
        }

    def _tune(self, model: nn.Module, camera: str) -> tuple[str, list[float]]:
        """The camera, and the losses of tuning it; none where gradients are off, as backward then raises."""
        try:
            losses = self.tune(model, self.images[camera][0], camera, *self.corrections)
        except RuntimeError:
            if modes() == "gradients":
                raise
            return camera, []
        fits = isinstance(losses, list) and all(isinstance(loss, float) for loss in losses)
        expect(fits, "tune", wanted="a list of floats, the loss of each step", got=describe(losses))
        return camera, losses

    def _warmed_up(self, model: nn.Module) -> tuple[str, list[float]]:
        return WARMED, [loss for _ in range(TIMES["warmed_up"]) for loss in self._tune(model, WARMED)[1]]

    def _detected(self, model: nn.Module) -> tuple[str, list[float]]:
        self.detect(model, self.images[NEW][0], NEW)
        return self._tune(model, NEW)

    def _in_all(self, model: nn.Module) -> tuple[str, list[float]]:
        self.detect_all(model, {camera: self._source(camera) for camera in CAMERAS})
        return self._tune(model, NEW)

    def _tuning(self, model: nn.Module) -> tuple[str, list[float]]:
        return self._tune(model, NEW)

    def _streamed(self, model: nn.Module) -> tuple[str, list[float]]:
        """While the stream is running."""
        stream = self.stream(model, self._source(NEW), NEW)
        for _ in stream:
            return self._tune(model, NEW)
        return NEW, []


def _shapes(model: nn.Module) -> dict[str, list[int]]:
    """Of all that is there before a camera is."""
    return {name: list(t.shape) for name, t in model.state_dict().items() if "calibrations" not in name}


def _checked(found, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Detections as the contract wants them. Raises Contract."""
    three = isinstance(found, tuple | list) and len(found) == 3 and all(isinstance(t, Tensor) for t in found)
    expect(three, name, wanted="three tensors: boxes, scores, labels", got=describe(found))
    shapes = [list(t.shape) for t in found]
    wanted = [[IMAGES, TOP, 4], [IMAGES, TOP], [IMAGES, TOP]]
    expect(shapes == wanted, name, wanted=f"tensors of the shapes {wanted}", got=f"{shapes}")
    return found


def _looked(looks: list, kept: list, images: int) -> dict:
    """What the kept results hold, look by look, `images` more each time; and whether anything else has a graph."""
    last = looks[-1]
    return {
        "held_kib": torch.tensor([look.bytes for look in looks]) / KIB,
        "held_kib_per_image": last.bytes / len(looks) / images / KIB,
        "saved_kib_per_image": last.saved_bytes / len(looks) / images / KIB,
        "nodes": last.nodes,
        "nodes_anywhere": held(alive()).nodes,
        "requires_grad": any(t.requires_grad for found in kept for t in found),
    }


def _answers(kept: list) -> dict:
    boxes, scores, labels = (torch.stack([found[i].detach().cpu() for found in kept]) for i in range(3))
    return {"boxes": boxes, "scores": scores, "labels": labels}


def _known() -> dict:
    """Three facts about modes, of plain functions."""
    scale, in_body = nn.Parameter(torch.ones(1)), []

    def called() -> Tensor:
        return torch.ones(1) * scale

    def generator() -> Iterator[int]:
        with torch.no_grad():
            yield 1

    with torch.no_grad(), ThreadPoolExecutor(1) as pool:
        found = {"known.called": called().requires_grad, "known.thread": pool.submit(called).result().requires_grad}
    for _ in generator():
        in_body.append(torch.is_grad_enabled())
    return found | {"known.body": in_body[0]}
