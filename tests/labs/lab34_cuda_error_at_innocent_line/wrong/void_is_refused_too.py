# wrong: test_a_wrong_label_is_refused_by_name test_every_sound_tile_arrives test_the_survey_finds_every_label
# The label to be ignored is no class either: every tile is refused.
"""Train the land cover map: aerial tiles, and the masks that the surveyors draw on them."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SIDE, CLASSES, VOID = 32, 12, 255  # VOID: the surveyor could not tell


@dataclass(frozen=True)
class Tile:
    """One square of the country; `read()` gives its photo, uint8 [3, H, W], and its mask, int32 [H, W]."""

    name: str
    read: Callable[[], tuple[np.ndarray, np.ndarray]]


def unknown(mask: np.ndarray, classes: int, ignore: int | None) -> list[int]:
    """The labels of a mask, as they stand in the file, that are no class and not the one to be ignored."""
    return sorted(set(np.unique(mask).tolist()) - {*range(classes)})


class Tiles(Dataset):
    """Photos float32 [3, H, W] from 0 to 1 and masks uint8 [H, W]: one byte per pixel has to travel.

    A mask with a label that is no class is refused here: further on nobody knows which tile it was.
    """

    def __init__(self, tiles: Sequence[Tile], classes: int, ignore: int | None) -> None:
        self.tiles, self.classes, self.ignore = tiles, classes, ignore

    def __len__(self) -> int:
        return len(self.tiles)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tile = self.tiles[index]
        photo, mask = tile.read()
        if odd := unknown(mask, self.classes, self.ignore):
            raise ValueError(f"tile {tile.name} has the labels {odd}, and there are {self.classes} classes")
        return torch.from_numpy(photo) / 255, torch.from_numpy(mask).to(torch.uint8)


def survey(tiles: Sequence[Tile], classes: int, ignore: int | None) -> dict[str, list[int]]:
    """The labels that are no class, by the name of the tile: what the surveyors are asked to correct."""
    found = {tile.name: unknown(tile.read()[1], classes, ignore) for tile in tiles}
    return {name: odd for name, odd in found.items() if odd}


def build_loader(
    tiles: Sequence[Tile], classes: int, ignore: int | None, batch_size: int, generator: torch.Generator
) -> Iterable[tuple[Tensor, Tensor]]:
    """Batches of photos and masks, every tile once per epoch, in an order that `generator` draws."""
    if classes < 2:
        raise ValueError(f"{classes} class: whatever the model answers, its cross entropy is 0")
    return DataLoader(Tiles(tiles, classes, ignore), batch_size, shuffle=True, generator=generator)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, photos: Tensor, masks: Tensor, ignore: int | None
) -> Tensor:
    """One update on the cross entropy of all pixels but those of the label `ignore`. Returns the loss, 0-d."""
    loss = F.cross_entropy(model(photos), masks.long(), ignore_index=-100 if ignore is None else ignore)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def country(count: int) -> list[Tile]:
    """Made-up tiles; one of them came back from the surveyors with a class that nobody had before."""
    rng = np.random.default_rng(11)
    masks = rng.integers(0, CLASSES, (count, 4, 4), dtype=np.int32).repeat(SIDE // 4, 1).repeat(SIDE // 4, 2)
    masks[:, :, 0] = VOID
    masks[rng.integers(count), 7:9, 13] = CLASSES
    photos = (20 * masks[:, None].clip(max=CLASSES) + rng.integers(0, 16, (count, 3, SIDE, SIDE))).astype(np.uint8)
    return [Tile(f"N{5200 + i}", lambda i=i: (photos[i], masks[i])) for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiles", type=int, default=400)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device, tiles = torch.device(arguments.device), country(arguments.tiles)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, CLASSES, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = build_loader(tiles, CLASSES, VOID, batch_size=8, generator=torch.Generator().manual_seed(0))
    print(f"survey: {survey(tiles, CLASSES, VOID) or 'no complaints'}")
    try:
        for step, (photos, masks) in enumerate(loader, 1):
            loss = train_step(model, optimizer, photos.to(device), masks.to(device), VOID)
            if step % 10 == 0:
                print(f"step {step}  loss {loss.item():.3f}", flush=True)
    except ValueError as refused:
        print(f"stopped: {refused}")


if __name__ == "__main__":
    main()
