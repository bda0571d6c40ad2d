# wrong: test_the_seed_alone_decides
# a generator from the system's entropy for each clip: never the same, and no run can be repeated

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
        self.recordings = recordings

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        signal, label = self.recordings[index]
        return cut(signal, np.random.default_rng()), label, index


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    return DataLoader(
        Clips(recordings, seed),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
