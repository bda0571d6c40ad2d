"""Train the leaf doctor on spots that were marked on photos of leaves, and check it on records of another station."""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchvision.io import decode_jpeg, read_file, write_jpeg

SPOT, BATCH = 32, 64  # pixels of a spot, each way


class Photos:
    """Photos in a folder, JPEG, each of a size of its own."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.names = folder, [f"leaf_{i:03}.jpg" for i in range(count)]
        for i, name in enumerate(self.names):
            rough = torch.rand(1, 3, 16, 20, generator=torch.Generator().manual_seed(i))
            photo = nn.functional.interpolate(rough, size=(480 + 8 * (i % 5), 640 + 8 * (i % 3)), mode="bicubic")
            write_jpeg((photo[0].clamp(0, 1) * 255).byte(), str(folder / name))

    def decode(self, name: str) -> Tensor:
        """The photo of that name, uint8 [3, height, width]."""
        return decode_jpeg(read_file(str(self.folder / name)))


class Spots(Dataset):
    """The marked spots, each cut out of its photo and augmented. Photos are decoded once, before there are workers."""

    def __init__(self, photos: Photos, marks: Iterator[tuple[str, int, int, int]], augment: Callable) -> None:
        self.augment = augment
        self.decoded = [_decoded(photos, name) for name in photos.names]  # forked workers share the pixels
        number = {name: i for i, name in enumerate(photos.names)}
        # one tensor: to look at one of many Python objects is to write to it, and copies its page for each worker
        self.marks = torch.tensor([(number[name], top, left, kind) for name, top, left, kind in marks])

    def __len__(self) -> int:
        return len(self.marks)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        photo, top, left, kind = self.marks[index].tolist()
        spot = self.decoded[photo][:, top : top + SPOT, left : left + SPOT]
        return self.augment(spot), kind, index


def _decoded(photos: Photos, name: str) -> Tensor:
    """The photo; an error says which one it was. Raises RuntimeError."""
    try:
        return photos.decode(name)
    except Exception as error:
        raise RuntimeError(f"cannot decode {name}: {error}") from error


class Station(IterableDataset):
    """The records of another station, shard after shard."""

    def __init__(self, shards: Sequence[Iterable]) -> None:
        self.shards = shards

    def __iter__(self) -> Iterator[tuple[Tensor, int, int]]:
        info = get_worker_info()  # each worker runs this, so each must take its own part
        for shard in self.shards[info.id :: info.num_workers] if info else self.shards:
            yield from shard


def build_loader(photos: Photos, marks: Iterator, augment: Callable, sampler: Iterable, num_workers: int) -> Iterable:
    """Batches of spots in the sampler's order; each iteration is one epoch."""
    return DataLoader(
        Spots(photos, marks, augment),
        batch_size=BATCH,
        sampler=sampler,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def build_validation(shards: Sequence[Iterable], num_workers: int) -> Iterable:
    """Batches of records; each iteration is one validation."""
    return DataLoader(Station(shards), batch_size=BATCH, num_workers=num_workers, persistent_workers=num_workers > 0)


def augment(spot: Tensor) -> Tensor:
    """The spot, or its mirror image."""
    return spot.flip(-1) if torch.rand(()) < 0.5 else spot


def train(epochs: int, photos: Photos, marks: int, workers: int) -> None:
    """Train for `epochs` epochs; after each, print the loss and how much of it went by without a batch at hand."""
    model = nn.Sequential(nn.Conv2d(3, 32, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1568, 9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    drawn = torch.randint(0, 440, (marks, 3), generator=torch.Generator().manual_seed(1)).tolist()
    rows = ((photos.names[a % len(photos.names)], b, c, a % len(photos.names) % 9) for a, b, c in drawn)
    sampler = torch.utils.data.RandomSampler(range(marks), num_samples=1024)
    loader = build_loader(photos, rows, augment, sampler, workers)
    for epoch in range(epochs):
        started = asked = time.perf_counter()
        waited, first = 0.0, None
        for spots, kinds, _ in loader:
            waited += time.perf_counter() - asked
            first = first or waited
            loss = nn.functional.cross_entropy(model(spots / 255), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            asked = time.perf_counter()
        total = time.perf_counter() - started
        print(
            f"epoch {epoch}  loss {loss:.3f}  {total:.2f} s, of them {waited / total:.0%} waiting for a batch; ", end=""
        )
        print(f"{first:.2f} s until the first")
    shards = [[(torch.zeros(3, SPOT, SPOT), 0, 20 * shard + i) for i in range(20)] for shard in range(5)]
    print(f"validated on {sum(len(kinds) for _, kinds, _ in build_validation(shards, workers))} records of 100")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--marks", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        train(arguments.epochs, Photos(Path(folder), 24), arguments.marks, arguments.workers)


if __name__ == "__main__":
    main()
