# wrong: test_epochs_differ
# set_epoch on the dataset: workers that last have a copy of their own, which never hears of it

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
        self.recordings, self.seed, self.epoch = recordings, seed, -1

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        signal, label = self.recordings[index]
        return cut(signal, np.random.default_rng((self.seed, self.epoch, index))), label, index


class Epochs:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        self.loader.dataset.epoch += 1
        return iter(self.loader)


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
