# wrong: test_loss_and_gradients_equal_plain
# The heads run on the coarse grid, and dropout is taken out of the wider one to hold less still: another model in training.
"""Train the land-cover model: from an aerial photograph to the cover of every pixel."""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.models.segmentation.fcn import FCNHead

UNLABELLED = 255  # a pixel that nobody has looked at
RESNET_50 = (3, 4, 6, 3)


class LandCover(nn.Module):
    """Photographs [B, 3, H, W] to one logit per class and pixel: {"out": [B, C, H, W], "aux": the same}."""

    def __init__(self, classes: int, layers: tuple[int, ...]) -> None:
        super().__init__()
        resnet = ResNet(Bottleneck, list(layers), replace_stride_with_dilation=[False, True, True])
        self.backbone = IntermediateLayerGetter(resnet, {"layer4": "out", "layer3": "aux"})
        self.classifier = FCNHead(2048, classes)
        self.aux_classifier = FCNHead(1024, classes)
        self.classifier[3] = nn.Identity()  # dropout keeps a mask and a copy as large as the map; ResNet has BatchNorm

    def forward(self, photographs: Tensor) -> dict[str, Tensor]:
        size = photographs.shape[-2:]
        features = self.backbone(photographs)
        return {
            "out": full(self.classifier(features["out"]), size),
            "aux": full(self.aux_classifier(features["aux"]), size),
        }


def full(x: Tensor, size: torch.Size) -> Tensor:
    """Bring what was computed on a coarser grid to the size of the photographs."""
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def build(classes: int, layers: tuple[int, ...] = RESNET_50) -> nn.Module:
    """The model, on the default device."""
    return LandCover(classes, layers)


def loss_of(model: nn.Module, photographs: Tensor, cover: Tensor) -> Tensor:
    """The mean loss over all labelled pixels, and half of that of the auxiliary head."""
    logits = model(photographs)
    losses = {name: F.cross_entropy(x, cover, ignore_index=UNLABELLED) for name, x in logits.items()}
    return losses["out"] + 0.5 * losses["aux"]


@torch.no_grad()
def segment(model: nn.Module, photographs: Tensor) -> Tensor:
    """One logit per class and pixel, [B, C, H, W]; the model is in eval mode."""
    return model(photographs)["out"]


def survey(count: int, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """`count` batches of two photographs [2, 3, size, size] and their cover [2, size, size]."""
    generator = torch.Generator().manual_seed(5)
    colours = torch.randn(6, 3, generator=generator)
    for _ in range(count):
        fields = torch.randint(6, (2, 1, size // 16, size // 16), generator=generator)
        cover = F.interpolate(fields.float(), size=(size, size)).long().squeeze(1)
        noise = 0.3 * torch.randn(2, 3, size, size, generator=generator)
        yield (colours[cover].movedim(-1, 1) + noise).to(device), cover.to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    with device:
        model = build(classes=6, layers=RESNET_50 if device.type == "cuda" else (1, 1, 1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step, (photographs, cover) in enumerate(survey(arguments.steps, arguments.size, device), 1):
        optimizer.zero_grad()
        loss = loss_of(model, photographs, cover)
        loss.backward()
        optimizer.step()
        print(f"step {step:3d}  loss {loss.item():.3f}")
    if device.type == "cuda":
        print(f"peak {torch.cuda.max_memory_allocated(device) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
