# right: the numbers follow from (seed, epoch, index), the epoch in shared memory; the same clips with any number of workers

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def cut(signal, rng):
    start = int(rng.integers(signal.shape[1] - 31))
    clip = signal[:, start : start + 32].clone()
    clip[0] *= float(rng.uniform(0.8, 1.25))
    return clip


class Clips(Dataset):
    def __init__(self, recordings, seed):
        self.recordings, self.seed = recordings, seed
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that last see it change

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        signal, label = self.recordings[index]
        return cut(signal, np.random.default_rng((self.seed, int(self.epoch), index))), label, index


class Epochs:
    """A loader that counts its epochs where the workers can see it."""

    def __init__(self, loader):
        self.loader, self.started = loader, 0

    def __iter__(self):
        self.loader.dataset.epoch.fill_(self.started)
        self.started += 1
        return iter(self.loader)

    def __len__(self):
        return len(self.loader)


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    loader = DataLoader(
        Clips(recordings, seed),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
    return Epochs(loader)
