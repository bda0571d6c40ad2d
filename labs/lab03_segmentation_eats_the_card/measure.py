"""Measure lab03: what a step of the real model needs at real sizes, counted on meta; its numbers on small images."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.models.segmentation import FCN
from torchvision.models.segmentation.fcn import FCNHead

from breakfix.contract import describe, expect, expect_tensors, function
from breakfix.probes.flops import flop_counter
from breakfix.probes.memory import MIB, Card
from breakfix.probes.parity import relative_error

RESNET_50, SHALLOW, UNLABELLED = (3, 4, 6, 3), (1, 1, 1, 1), 255
LAST = {"head": "classifier.4.weight", "auxiliary": "aux_classifier.4.weight"}  # the layers behind dropout
SAMPLES = 255  # elements of each gradient that become evidence
DRAWN = 65_537  # random numbers that all weights are made of; a prime, so that no two filters are equal
BUDGET = 1.05  # of what the plain model needs


@dataclass(frozen=True)
class Size:
    """A batch of photographs: how many, how high and wide, and into how many classes their pixels fall."""

    photographs: int
    height: int
    width: int
    classes: int

    @property
    def logits_mib(self) -> float:
        """Of the logits of all pixels, in float32."""
        return 4 * self.photographs * self.classes * self.height * self.width / MIB


COUNTED = {"tiles": Size(8, 512, 512, 21), "scenes": Size(2, 1024, 1024, 150)}  # VOC's and ADE20K's numbers of classes
COMPUTED = {"even": Size(2, 16, 16, 5), "odd": Size(2, 19, 13, 7)}  # "odd" has pixels without a label


def reference(classes: int, layers: tuple[int, ...]) -> nn.Module:
    """torchvision's fcn_resnet50 with its auxiliary head, or the same with fewer blocks."""
    resnet = ResNet(Bottleneck, list(layers), replace_stride_with_dilation=[False, True, True])
    backbone = IntermediateLayerGetter(resnet, {"layer4": "out", "layer3": "aux"})
    return FCN(backbone, FCNHead(2048, classes), FCNHead(1024, classes))


def reference_loss(model: nn.Module, photographs: Tensor, cover: Tensor) -> Tensor:
    losses = {k: F.cross_entropy(x, cover, ignore_index=UNLABELLED) for k, x in model(photographs).items()}
    return losses["out"] + 0.5 * losses["aux"]


def reference_segment(model: nn.Module, photographs: Tensor) -> Tensor:
    with torch.no_grad():
        return model(photographs)["out"]


def inputs(seed: int) -> dict:
    """The seed of the weights; photographs and the cover of their pixels to compute with."""
    g = torch.Generator().manual_seed(seed)
    return {"seed": seed, **{name: _draw(size, name == "odd", g) for name, size in COMPUTED.items()}}


def _draw(size: Size, gaps: bool, g: torch.Generator) -> tuple[Tensor, Tensor]:
    shape = (size.photographs, size.height, size.width)
    cover = torch.randint(size.classes, shape, generator=g)
    if gaps:
        share = torch.linspace(0.1, 0.8, size.photographs).view(-1, 1, 1)  # unequal, so that a mean of means shows
        cover[torch.rand(shape, generator=g) < share] = UNLABELLED
    return torch.randn(size.photographs, 3, size.height, size.width, generator=g), cover


@torch.no_grad()
def prepare(model: nn.Module, seed: int, dropout: bool = False) -> None:
    """Write the seed's weights and fresh statistics into the model's own tensors; training mode, dropout if asked."""
    drawn, start = torch.randn(DRAWN, generator=torch.Generator().manual_seed(seed + 1)), 0
    for name, p in sorted(model.named_parameters()):
        normal = drawn.roll(-start).repeat(-(-p.numel() // DRAWN))[: p.numel()].view(p.shape)
        if p.ndim == 4:
            p.copy_(normal * (2 / p[0].numel()) ** 0.5)
        else:  # biases large enough for ReLU to cut, or some gradients would be zero by construction
            p.copy_(2 * normal if name.endswith("bias") else 1 + 0.1 * normal)
        start = (start + p.numel()) % DRAWN
    for name, buffer in model.named_buffers():
        buffer.fill_(float(name.endswith("running_var")))
    for module in model.train().modules():
        if isinstance(module, nn.Dropout) and not dropout:
            module.p = 0.0  # so that masks need not be drawn in one order


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """By parameter; those that got none are left out."""
    return {name: p.grad for name, p in sorted(model.named_parameters()) if p.grad is not None}


def statistics(model: nn.Module) -> Tensor:
    """Running means and variances, in the order of their names."""
    found = [b for name, b in sorted(model.named_buffers()) if name.endswith(("running_mean", "running_var"))]
    return torch.cat([b.reshape(-1).float().cpu() for b in found])


def compute(model: nn.Module, loss_of, segment, drawn: tuple[Tensor, Tensor], device: torch.device) -> dict:
    """One step's loss and gradients on real numbers, and the logits afterwards."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    photographs, cover = (t.to(device) for t in drawn)
    loss = loss_of(model, photographs, cover)
    expect(isinstance(loss, Tensor) and loss.ndim == 0, "loss_of", wanted="a scalar tensor", got=describe(loss))
    loss.backward()
    found = {"loss": loss.item(), "gradients": gradients(model), "statistics": statistics(model)}
    model.eval()
    logits = segment(model, photographs)
    expect(isinstance(logits, Tensor), "segment", wanted="a tensor of logits", got=describe(logits))
    return found | {"logits": logits.float().cpu()}


def spread(
    model: nn.Module, loss_of, drawn: tuple[Tensor, Tensor], seed: int, device: torch.device
) -> dict[str, float]:
    """By head: how far the gradient of its last layer moves from one mask of dropout to the next, as a share of it."""
    prepare(model, seed, dropout=True)
    last, batch = [model.get_parameter(name) for name in LAST.values()], [t.to(device) for t in drawn]
    draws = [torch.autograd.grad(loss_of(model, *batch), last, materialize_grads=True) for _ in range(2)]
    return {f"{name}.spread": relative_error(*pair) for name, pair in zip(LAST, zip(*draws, strict=True), strict=True)}


def count(build, loss_of, size: Size) -> dict:
    """Forward and backward of the real model at a real size, on tensors that have shapes and no memory."""
    counter, card = flop_counter(), Card("meta")
    with torch.device("meta"):
        model = build(size.classes, RESNET_50).train()
        photographs = torch.empty(size.photographs, 3, size.height, size.width)
        cover = torch.empty(size.photographs, size.height, size.width, dtype=torch.long)
        with card, counter:
            card.add(model, photographs, cover)
            loss_of(model, photographs, cover).backward()
    return {
        "peak_mib": card.peak.bytes / MIB,
        "peak_at": str(card.peak),
        "largest_mib": max(block.bytes for block in card.peak.blocks) / MIB,
        "tflop": counter.get_total_flops() / 1e12,
        "timeline": torch.tensor([(op, held / MIB) for op, held in card.timeline], dtype=torch.float32),
    }


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build(classes, layers) -> nn.Module")
    loss_of = function(subject, "loss_of(model, photographs, cover) -> Tensor")
    segment = function(subject, "segment(model, photographs) -> Tensor")
    drawn, evidence = inputs(seed), {"head.times": _head_at_full_size()}
    for name, size in COMPUTED.items():
        with device:
            model = _built(build, size.classes, SHALLOW)
        evidence |= _flat(name, spread(model, loss_of, drawn[name], seed, device))
        prepare(model, seed)
        found = compute(model, loss_of, segment, drawn[name], device)
        evidence |= _flat(name, found | _sampled(model, found["gradients"], drawn["seed"]))
    for name, size in COUNTED.items():
        evidence |= _flat(name, count(build, loss_of, size))
    plain = count(reference, reference_loss, COUNTED["tiles"])
    evidence["tiles.times"] = evidence["tiles.peak_mib"] / plain["peak_mib"]
    evidence |= {"tiles.bound_mib": BUDGET * plain["peak_mib"], "tiles.plain_timeline": plain["timeline"]}
    return evidence


def _flat(name: str, found: dict) -> dict:
    return {f"{name}.{key}": value for key, value in found.items()}


def _sampled(model: nn.Module, found: dict[str, Tensor], seed: int) -> dict:
    """[parameters, 256] of every parameter's gradient in the order of their names, and which have none."""
    names = sorted(name for name, _ in model.named_parameters())
    rows = [sample(found[name], seed) if name in found else torch.zeros(SAMPLES + 1) for name in names]
    return {"gradients": torch.stack(rows), "without_gradient": [name for name in names if name not in found]}


def sample(gradient: Tensor, seed: int) -> Tensor:
    """[SAMPLES + 1] float32: elements of a gradient at places that the seed decides, and its norm."""
    flat = gradient.detach().reshape(-1).float().cpu()
    places = torch.randint(len(flat), (SAMPLES,), generator=torch.Generator().manual_seed(seed + 3))
    return torch.cat([flat[places], flat.norm().reshape(1)])


def _built(build, classes: int, layers: tuple[int, ...]) -> nn.Module:
    """The subject's model. Raises Contract."""
    model = build(classes, layers)
    expect(isinstance(model, nn.Module), "build", wanted="an nn.Module", got=describe(model))
    with torch.device("meta"):
        wanted, found = _tensors(reference(classes, layers)), _tensors(model)
    says = "a model with the parameters and buffers of today, by name, shape and dtype"
    expect_tensors(found, wanted, "build", says)
    return model


def _tensors(model: nn.Module) -> dict[str, str]:
    named: Iterable[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    return {name: f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for name, t in named}


def _head_at_full_size() -> float:
    """How many times as many products the head needs on a grid that is eight times as fine in each direction."""
    products = []
    for side in (8, 64):
        with torch.device("meta"), flop_counter() as counter:
            FCNHead(2048, 21)(torch.empty(2, 2048, side, side))
        products.append(counter.get_total_flops())
    return products[1] / products[0]
