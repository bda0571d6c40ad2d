# wrong: test_workers_do_not_repeat_each_other test_epochs_differ
# the advice of most threads: it seeds NumPy's global generator, which had been seeded already and is not the one drawn from

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
        self.recordings, self.rng = recordings, np.random.default_rng(seed)

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        signal, label = self.recordings[index]
        return cut(signal, self.rng), label, index


def seed_numpy(worker):
    np.random.seed(torch.initial_seed() % 2**32)


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    return DataLoader(
        Clips(recordings, seed),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
        worker_init_fn=seed_numpy,
    )
