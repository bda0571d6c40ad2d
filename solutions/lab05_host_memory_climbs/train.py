"""Train the nodule classifier on CT scans: every epoch resamples them to another slice thickness."""

import argparse
import shutil
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SIDE = 64  # pixels of a slice, each way
BATCH = 4
THICKNESS = (1, 2, 4)  # mm; scanners differ, so the classifier has to see all of them


class Scans(Dataset):
    """CT scans of 17 to 32 mm in Hounsfield units, at the slice thickness that the trainer sets before an epoch."""

    def __init__(self, count: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(17, 33, (count,), generator=generator).tolist()
        self.thickness = 1

    def __len__(self) -> int:
        return len(self.lengths)

    def depth(self, index: int) -> int:
        """Slices of scan `index` at the present thickness, known without reading it."""
        return -(-self.lengths[index] // self.thickness)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """The scan, float32 [depth, SIDE, SIDE], and its id."""
        generator = torch.Generator().manual_seed(index)
        shape = (self.depth(index), SIDE, SIDE)
        return torch.randint(-1024, 3072, shape, generator=generator, dtype=torch.int16).float(), index


class Classifier(nn.Module):
    """One convolution per slice, averaged over the slices of a scan."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 8, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(8, 2)

    def forward(self, volumes: Sequence[Tensor]) -> Tensor:
        """[batch, 2] logits."""
        means = [self.features(volume.unsqueeze(1) / 1024).mean(0) for volume in volumes]
        return self.head(torch.stack(means))


def collate(samples: list[tuple[Tensor, int]]) -> tuple[list[Tensor], list[int]]:
    """Scans differ in depth, so a batch is a list."""
    volumes, ids = zip(*samples, strict=True)
    return list(volumes), list(ids)


def build_loader(dataset: Dataset, generator: torch.Generator) -> Iterable:
    """Shuffled batches of four scans; each iteration is one epoch."""
    return DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        generator=generator,
        collate_fn=collate,
        num_workers=2,
        prefetch_factor=2,  # all that waits is pinned, each scan rounded up to a power of two, and kept
        pin_memory=True,
    )


def to_device(batch: tuple[list[Tensor], list[int]], device: torch.device) -> tuple[list[Tensor], list[int]]:
    """The batch's scans on the device, and their ids."""
    volumes, ids = batch
    return [volume.to(device, non_blocking=True) for volume in volumes], ids


def host_memory() -> tuple[str, int]:
    """Where batches lie on the host, and how many bytes of it are taken."""
    if torch.cuda.is_available():
        return "pinned", torch.cuda.host_memory_stats()["allocated_bytes.current"]
    return "/dev/shm", shutil.disk_usage("/dev/shm").used


def train(epochs: int, scans: Dataset, device: torch.device) -> None:
    """Train for `epochs` epochs; after each, print what the batches took."""
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = build_loader(scans, torch.Generator().manual_seed(0))
    for epoch in range(epochs):
        scans.thickness = THICKNESS[epoch % len(THICKNESS)]
        largest = taken = 0
        for batch in loader:
            volumes, ids = to_device(batch, device)
            targets = torch.tensor(ids, device=device) % 2
            loss = nn.functional.cross_entropy(model(volumes), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            largest = max(largest, sum(volume.nbytes for volume in volumes))
            taken = max(taken, host_memory()[1])
        print(f"epoch {epoch}  {scans.thickness} mm  loss {loss:.3f}  ", end="")
        print(f"largest batch {largest / 2**20:.1f} MiB  host memory {taken / 2**20:.1f} MiB ({host_memory()[0]})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--scans", type=int, default=96)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    train(arguments.epochs, Scans(arguments.scans), torch.device("cuda" if torch.cuda.is_available() else "cpu"))


if __name__ == "__main__":
    main()
