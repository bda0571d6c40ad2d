# right: a generator per process, made at the first draw from the loader's seed for it; with no workers from the run's

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


def cut(signal, rng):
    start = int(rng.integers(signal.shape[1] - 31))
    clip = signal[:, start : start + 32].clone()
    clip[0] *= float(rng.uniform(0.8, 1.25))
    return clip


class Clips(Dataset):
    def __init__(self, recordings, seed):
        self.recordings, self.seed, self.rng = recordings, seed, None

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        if self.rng is None:
            info = get_worker_info()
            self.rng = np.random.default_rng(info.seed if info else self.seed)
        signal, label = self.recordings[index]
        return cut(signal, self.rng), label, index


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    return DataLoader(
        Clips(recordings, seed),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
