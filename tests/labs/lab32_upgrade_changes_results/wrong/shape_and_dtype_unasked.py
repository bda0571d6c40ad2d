# wrong: test_a_change_is_seen
# Compares values alone: what is broadcast or converted on the way is the same to it, and not to who reads the answers.
"""What the taggers' service needs to answer the same on every torch: one resize, one regression test for upgrades."""

import argparse

import torch
import torchvision
from packaging.version import Version
from torch import Tensor, nn
from torch.nn import functional as F

TAGS, SIZE = 8, (96, 128)
ROUNDING = 1e-4  # of the answers' size: two right kernels differ by about 1e-6, a changed model by 1e-3 and more


def at_least(version: str, wanted: str) -> bool:
    """Whether `version` is `wanted` or a later one."""
    return Version(str(version)) >= Version(wanted)


def resize(images: Tensor, size: tuple[int, int], torch_version: str = torch.__version__) -> Tensor:
    """Images [N, 3, H, W] at another size, as the taggers know them."""
    # The same call for every version: each has it, and none has changed what it does.
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False)


@torch.no_grad()
def record(model: nn.Module, images: Tensor) -> dict:
    """What `model` answers today, to be kept until after the upgrade: the very images and answers."""
    return {"images": images.cpu().clone(), "answers": model(images).cpu().clone()}


@torch.no_grad()
def regression_test(model: nn.Module, golden: dict) -> bool:
    """Whether `model` answers as it did when `golden` was recorded, but for rounding."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    now, then = model(golden["images"].to(device)).cpu(), golden["answers"]
    size = then.double().square().mean().sqrt()
    return bool(((now.double() - then.double()).abs() <= ROUNDING * size).all())  # nan is not


class Tagger(nn.Module):
    """Images [N, 3, H, W] of any size to the logits [N, TAGS] of their tags."""

    def __init__(self, torch_version: str = torch.__version__) -> None:
        super().__init__()
        self.torch_version = torch_version
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, TAGS))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(resize(images, SIZE, self.torch_version)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    torch.manual_seed(32)
    images, model = torch.rand(4, 3, 201, 267, device=device), Tagger("1.13.1").to(device).eval()
    golden = record(model, images)
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}")
    print(f"the same model, a second time: {'ok' if regression_test(model, golden) else 'CHANGED'}")
    for version in ("1.13.1", "2.0.0", "2.14.1"):
        upgraded = Tagger(version).to(device).eval()
        upgraded.load_state_dict(model.state_dict())
        with torch.no_grad():
            off = (upgraded(images) - model(images)).abs().max() / model(images).abs().max()
        verdict = "ok" if regression_test(upgraded, golden) else "CHANGED"
        print(f"as on torch {version:6}: largest difference of an answer {off:.4f}, regression test {verdict}")
    for version, wanted in ((torchvision.__version__, "0.9"), ("2.10.0", "2.9"), ("2.0.0a0", "2.0")):
        print(f"{version} at least {wanted}: {at_least(version, wanted)}")


if __name__ == "__main__":
    main()
