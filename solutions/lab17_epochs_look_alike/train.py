"""Train the bearing monitor on clips that are cut from vibration recordings at random and played at a random gain."""

import argparse
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

RATE = 1000  # samples per second
LENGTH, WINDOW = 4096, 32  # samples of a recording, and of a clip
GAIN = (0.8, 1.25)  # sensors differ by as much
BATCH = 8


class Recordings(Dataset):
    """Made-up recordings: acceleration and time in seconds, float32 [2, LENGTH]; every other bearing is worn."""

    def __init__(self, count: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        time = torch.arange(LENGTH) / RATE
        hum = torch.randn(count, LENGTH, generator=generator)
        self.labels = torch.arange(count) % 2
        knocks = (torch.sin(2 * torch.pi * 120 * time) > 0.9) * 3.0
        worn = hum + self.labels[:, None] * knocks
        self.signals = torch.stack([worn, time.expand_as(worn)], dim=1)

    def __len__(self) -> int:
        return len(self.signals)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.signals[index], int(self.labels[index])


class Clips(Dataset):
    """One clip of each recording, cut at a random place and multiplied by a random gain."""

    def __init__(self, recordings: Dataset) -> None:
        self.recordings = recordings

    def __len__(self) -> int:
        return len(self.recordings)

    def __getitem__(self, drawn: tuple[int, int]) -> tuple[Tensor, int, int]:
        """The clip [2, WINDOW], the label of its recording, and its number, for a number and a seed of `Draws`."""
        index, seed = drawn
        rng = np.random.default_rng(seed)  # nothing random outlives the clip: a worker has nothing to repeat
        signal, label = self.recordings[index]
        start = int(rng.integers(signal.shape[1] - WINDOW + 1))
        clip = signal[:, start : start + WINDOW].clone()
        clip[0] *= float(rng.uniform(*GAIN))
        return clip, label, index


class Draws(Sampler):
    """Every recording once an epoch, in a new order, and for each clip a seed of its own.

    There is one of it, in the trainer's process, so its generator goes on from epoch to epoch.
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order, seeds = self.rng.permutation(self.count), self.rng.integers(2**63, size=self.count)
        return zip(order.tolist(), seeds.tolist(), strict=True)


def build_loader(recordings: Dataset, seed: int, num_workers: int, persistent_workers: bool = False) -> Iterable:
    """Shuffled batches of clips; each iteration is one epoch. The seed makes a run repeatable."""
    return DataLoader(
        Clips(recordings),
        batch_size=BATCH,
        sampler=Draws(len(recordings), seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )


def train(epochs: int, seed: int, num_workers: int) -> None:
    """Train for `epochs` epochs; after each, print the loss and at how many different times its clips begin."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv1d(1, 8, 9), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader, so_far = build_loader(Recordings(76), seed, num_workers), set()
    for epoch in range(epochs):
        begins, losses = [], []
        for clips, labels, _ in loader:
            loss = nn.functional.cross_entropy(model(clips[:, :1]), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            begins += clips[:, 1, 0].tolist()
        so_far |= set(begins)
        print(f"epoch {epoch}  loss {np.mean(losses):.3f}  {len(begins)} clips begin at ", end="")
        print(f"{len(set(begins))} different times; {len(so_far)} in all epochs so far")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    train(arguments.epochs, arguments.seed, arguments.workers)


if __name__ == "__main__":
    main()
