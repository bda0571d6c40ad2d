# wrong: test_place_and_gain_are_drawn_as_before
# place and gain each from a generator of the same seed: both are drawn, and one follows from the other

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


def cut(signal, key):
    start = int(np.random.default_rng(key).random() * (signal.shape[1] - 31))
    clip = signal[:, start : start + 32].clone()
    clip[0] *= 0.8 + 0.45 * np.random.default_rng(key).random()
    return clip


class Clips(Dataset):
    def __init__(self, recordings, seed):
        self.recordings, self.seed, self.keys = recordings, seed, None

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        if self.keys is None:
            info = get_worker_info()
            self.keys = np.random.default_rng(info.seed if info else self.seed)
        signal, label = self.recordings[index]
        return cut(signal, int(self.keys.integers(2**63))), label, index


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    return DataLoader(
        Clips(recordings, seed),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
