# right: The same, one photograph at a time, so that the logits of one are alive. Costs as many launches as photographs.
"""Train the land-cover model: from an aerial photograph to the cover of every pixel."""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.models.segmentation.fcn import FCNHead

UNLABELLED = 255  # a pixel that nobody has looked at
RESNET_50 = (3, 4, 6, 3)


class LandCover(nn.Module):
    """Photographs [B, 3, H, W] to one logit per class on the backbone's grid: {"out": [B, C, h, w], "aux": the same}."""

    def __init__(self, classes: int, layers: tuple[int, ...]) -> None:
        super().__init__()
        resnet = ResNet(Bottleneck, list(layers), replace_stride_with_dilation=[False, True, True])
        self.backbone = IntermediateLayerGetter(resnet, {"layer4": "out", "layer3": "aux"})
        self.classifier = FCNHead(2048, classes)
        self.aux_classifier = FCNHead(1024, classes)

    def forward(self, photographs: Tensor) -> dict[str, Tensor]:
        features = self.backbone(photographs)
        return {"out": self.classifier(features["out"]), "aux": self.aux_classifier(features["aux"])}


def full(x: Tensor, size: torch.Size) -> Tensor:
    """Bring what was computed on a coarser grid to the size of the photographs."""
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def build(classes: int, layers: tuple[int, ...] = RESNET_50) -> nn.Module:
    """The model, on the default device."""
    return LandCover(classes, layers)


def loss_of(model: nn.Module, photographs: Tensor, cover: Tensor) -> Tensor:
    """The mean loss over all labelled pixels, and half of that of the auxiliary head."""
    labelled = (cover != UNLABELLED).sum()
    losses = {name: sum_over(x, cover) / labelled for name, x in model(photographs).items()}
    return losses["out"] + 0.5 * losses["aux"]


def sum_over(logits: Tensor, cover: Tensor) -> Tensor:
    """The summed loss of all photographs, each by itself."""
    pairs = zip(logits.split(1), cover.split(1), strict=True)
    return sum(checkpoint(summed_loss, *pair, use_reentrant=False) for pair in pairs)


def summed_loss(logits: Tensor, cover: Tensor) -> Tensor:
    """The loss of all labelled pixels, of logits on a coarser grid."""
    return F.cross_entropy(full(logits, cover.shape[-2:]), cover, ignore_index=UNLABELLED, reduction="sum")


@torch.no_grad()
def segment(model: nn.Module, photographs: Tensor) -> Tensor:
    """One logit per class and pixel, [B, C, H, W]; the model is in eval mode."""
    return full(model(photographs)["out"], photographs.shape[-2:])


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
