# wrong: test_workers_do_not_repeat_each_other test_epochs_differ test_the_seed_alone_decides
# a seed per clip from the worker's and the index: worker 1 draws for recording 5 what worker 0 draws for 6

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
        self.recordings = recordings  # the seed is the loader's matter

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        signal, label = self.recordings[index]
        return cut(signal, np.random.default_rng(torch.initial_seed() + index)), label, index


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    return DataLoader(
        Clips(recordings, seed),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
