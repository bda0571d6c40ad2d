# wrong: error
# Tuning looks the calibration up, so that it cannot make one in a wrong mode: a camera that is corrected before it has served has none.
"""Inspect bottles on the line: find defects, keep them for the shift's report, learn from an operator's corrections."""

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if sys.platform != "win32":
    import resource

CLASSES, TOP, STEPS = 5, 10, 10
Detections = tuple[Tensor, Tensor, Tensor]  # boxes [B, TOP, 4], scores [B, TOP], labels [B, TOP] int64


class Detector(nn.Module):
    """A frozen backbone; tuned are the scale of its boxes and, for each camera, a calibration of its scores."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Conv2d(3, 16, 4, stride=4), nn.ReLU(), nn.Conv2d(16, 4 + CLASSES, 1)
        self.backbone = nn.Sequential(*layers).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(4))
        self.calibrations = nn.ModuleDict()

    def calibration(self, camera: str) -> nn.Linear:
        """The camera's own, in the beginning the identity. Cameras come while the line is running."""
        if camera not in self.calibrations:
            self.calibrations[camera] = nn.Linear(CLASSES, CLASSES, bias=False, device=self.scale.device)
            nn.init.eye_(self.calibrations[camera].weight)
        return self.calibrations[camera]

    def forward(self, images: Tensor, camera: str) -> tuple[Tensor, Tensor]:
        """Offsets [B, places, 4] and logits [B, places, CLASSES] of images [B, 3, H, W]."""
        raw = self.backbone(images).flatten(2).transpose(1, 2)
        return raw[..., :4], self.calibration(camera)(raw[..., 4:])


def build(device: torch.device) -> Detector:
    """The detector on `device`, ready to serve."""
    return Detector().to(device).eval()


@torch.no_grad()
def warm_up(model: Detector, cameras: Iterable[str], image: Tensor) -> None:
    """Run once for each camera, so that the first bottle does not wait."""
    for camera in cameras:
        model(image, camera)


def post_process(model: Detector, offsets: Tensor, logits: Tensor) -> Detections:
    """The most certain places of each image, with boxes in pixels."""
    scores, labels = logits.softmax(-1).max(-1)
    scores, places = scores.topk(TOP)
    boxes = (offsets * model.scale).exp().gather(1, places.unsqueeze(-1).expand(-1, -1, 4))
    return boxes, scores, labels.gather(1, places)


@torch.no_grad()
def detect(model: Detector, images: Tensor, camera: str) -> Detections:
    """Detections in one batch of one camera."""
    return post_process(model, *model(images, camera))


def detect_all(model: Detector, sources: dict[str, Iterator[Tensor]]) -> dict[str, Detections]:
    """Detections in the next batch of every camera, read at the same time: a slow one holds up no other."""
    with ThreadPoolExecutor(len(sources)) as pool:
        found = pool.map(lambda camera: detect(model, next(sources[camera]), camera), sources)
        return dict(zip(sources, found, strict=True))


def stream(model: Detector, batches: Iterable[Tensor], camera: str) -> Iterator[Detections]:
    """Detections of one batch after another, as they come."""
    for images in batches:
        yield detect(model, images, camera)


def tune(model: Detector, images: Tensor, camera: str, places: Tensor, labels: Tensor, boxes: Tensor) -> list[float]:
    """Tune to an operator's corrections: a place [B], a label [B] and a box [B, 4] per image. The loss of each step."""
    optimizer = torch.optim.SGD([model.scale, *model.calibrations[camera].parameters()], lr=0.1)
    at, losses = (torch.arange(len(images), device=images.device), places), []
    for _ in range(STEPS):
        offsets, logits = model(images, camera)
        loss = F.cross_entropy(logits[at], labels) + F.mse_loss(offsets[at] * model.scale, boxes.log())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def memory() -> float:
    """MiB that tensors take on the card; without one, the most that the process has taken."""
    if torch.cuda.is_available() or sys.platform == "win32":
        return torch.cuda.memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, images, report = build(device), torch.rand(8, 3, 128, 128, device=device), []
    corrections = torch.arange(8, device=device), torch.arange(8, device=device) % CLASSES, images.new_full((8, 4), 3.0)
    warm_up(model, ["front", "back"], images[:1])
    for _ in range(5):
        report += [detect(model, images, "front") for _ in range(100)]
        print(f"{len(report) * 8:4d} images in the report    memory {memory():7.1f} MiB")
    before, losses = model.calibration("front").weight.clone(), tune(model, images, "front", *corrections)
    moved = (model.calibration("front").weight - before).norm()
    print(f"tuned    loss {losses[0]:.3f} to {losses[-1]:.3f}    calibration moved by {moved:.4f}")
    for _ in stream(model, [images] * 3, "back"):
        print(f"tuned while the line runs    loss {tune(model, images, 'back', *corrections)[-1]:.3f}")


if __name__ == "__main__":
    main()
