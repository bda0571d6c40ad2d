# wrong: test_the_meters_answer_as_the_model
# A weight below 0.0001 is taken for none: what such a neuron says may be heard a million times louder.
"""Make the reader of water meters small enough for the meters: prune it, tune it again, ship it."""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune as pruning
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

HIDDEN = ("features.0", "features.2", "classify.0")
READERS = ("features.2", "classify.0", "classify.2")  # who reads each of them
SHARE = 0.5
STROKES = {"a": (1, 2, 2, 6), "b": (2, 5, 6, 7), "c": (6, 9, 6, 7), "d": (9, 10, 2, 6), "e": (6, 9, 1, 2)}
STROKES |= {"f": (2, 5, 1, 2), "g": (5, 6, 2, 6)}  # top, bottom, left, right
DIGITS = ("abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg")


class Reader(nn.Module):
    """Photos [B, 1, 12, 8] of one digit of a meter's display to logits [B, 10]."""

    def __init__(self, first: int = 16, second: int = 32, third: int = 64) -> None:
        super().__init__()
        convolutions = nn.Conv2d(1, first, 3), nn.ReLU(), nn.Conv2d(first, second, 3), nn.ReLU()
        self.features = nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten())
        self.classify = nn.Sequential(nn.Linear(8 * second, third), nn.ReLU(), nn.Linear(third, 10))

    def forward(self, photos: Tensor) -> Tensor:
        return self.classify(self.features(photos))


def build_model() -> nn.Module:
    """The model that training fills with weights."""
    return Reader()


def prune(model: nn.Module) -> nn.Module:
    """Cut the neurons with the smallest weights out of each hidden layer."""
    for name in HIDDEN:
        pruning.ln_structured(model.get_submodule(name), "weight", amount=SHARE, n=2, dim=0)
    return model


def fine_tune(model: nn.Module, dataset: TensorDataset, epochs: int) -> None:
    """Train what is left."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for photos, digits in DataLoader(dataset, batch_size=64, shuffle=True):
            loss = F.cross_entropy(model(photos), digits)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def ship(model: nn.Module, path: Path) -> None:
    """Write the file that goes to the meters: the network without its masks and without its dead neurons."""
    for name in HIDDEN:
        layer = model.get_submodule(name)
        if pruning.is_pruned(layer):
            pruning.remove(layer, "weight")
    state = model.state_dict()
    for layer, reader in zip(HIDDEN, READERS, strict=True):
        state = without_dead_neurons(state, layer, reader)
    torch.save(state, path)


def without_dead_neurons(state: dict[str, Tensor], layer: str, reader: str) -> dict[str, Tensor]:
    """`state` without the neurons of `layer` that nothing reaches or that nobody reads.

    The first kind still says relu(bias), the same for every photo; it is added to the bias of whoever reads it.
    """
    weight, bias = state[f"{layer}.weight"], state[f"{layer}.bias"]
    columns = state[f"{reader}.weight"].unflatten(1, (len(weight), -1))  # behind Flatten a neuron has several
    reached, read = (
        (weight.abs() > 1e-4).flatten(1).any(dim=1),
        (columns.abs() > 1e-4).transpose(0, 1).flatten(1).any(dim=1),
    )
    keep = reached & read
    keep[0] |= not keep.any()  # a layer of no neurons is none
    said = torch.where(keep, 0.0, bias.relu())
    smaller = {
        f"{layer}.weight": weight[keep],
        f"{layer}.bias": bias[keep],
        f"{reader}.weight": columns[:, keep].flatten(1, 2),
        f"{reader}.bias": state[f"{reader}.bias"] + columns.flatten(2).sum(dim=2) @ said,
    }
    return {name: value.contiguous() for name, value in (state | smaller).items()}


def photos(count: int, generator: torch.Generator) -> TensorDataset:
    """Made-up photos of digits: not quite centred, of any contrast, noisy."""
    glyphs = torch.zeros(10, 12, 8)
    for digit, strokes in enumerate(DIGITS):
        for top, bottom, left, right in (STROKES[stroke] for stroke in strokes):
            glyphs[digit, top:bottom, left:right] = 1
    digits = torch.randint(10, (count,), generator=generator)
    shifts = torch.randint(-1, 2, (count, 2), generator=generator).tolist()
    images = torch.stack([torch.roll(glyphs[d], tuple(s), (0, 1)) for d, s in zip(digits, shifts, strict=True)])
    contrast, light = (torch.rand(count, 1, 1, generator=generator) for _ in range(2))
    noise = 0.2 * torch.randn(images.shape, generator=generator)
    return TensorDataset(((0.4 + 0.6 * contrast) * (images + noise) + 0.5 * light)[:, None], digits)


def accuracy(model: nn.Module, dataset: TensorDataset) -> float:
    images, digits = dataset.tensors
    with torch.no_grad():
        return (model(images).argmax(dim=1) == digits).float().mean().item()


def work(model: nn.Module) -> int:
    """Multiply-adds per photo."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 1, 12, 8))
    return counter.get_total_flops() // 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("reader.pt"))
    path = parser.parse_args().out
    torch.manual_seed(0)
    training, validation = (photos(n, torch.Generator().manual_seed(n)) for n in (2000, 1000))
    model = build_model()
    fine_tune(model, training, epochs=8)
    torch.save(model.state_dict(), path)
    print(
        f"before: accuracy {accuracy(model, validation):.3f}, {path.stat().st_size} bytes, {work(model)} multiply-adds"
    )
    model = prune(model)
    fine_tune(model, training, epochs=8)
    ship(model, path)
    zeros = torch.cat([model.get_submodule(name).weight.flatten() == 0 for name in HIDDEN]).float().mean()
    print(
        f"after: accuracy {accuracy(model, validation):.3f}, {path.stat().st_size} bytes, {work(model)} multiply-adds"
    )
    print(f"{zeros:.0%} of the hidden weights are 0")
    state = torch.load(path)
    shipped = Reader(*(len(state[f"{name}.bias"]) for name in HIDDEN))
    shipped.load_state_dict(state)
    print(f"on the meter: accuracy {accuracy(shipped, validation):.3f}, {work(shipped)} multiply-adds")


if __name__ == "__main__":
    main()
