# wrong: test_the_seed_alone_decides
# NumPy's global generator: torch seeds it in every worker, but with no workers whoever else draws decides

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, recordings):
        self.recordings = recordings

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        signal, label = self.recordings[index]
        start = np.random.randint(signal.shape[1] - 31)
        clip = signal[:, start : start + 32].clone()
        clip[0] *= np.random.uniform(0.8, 1.25)
        return clip, label, index


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    return DataLoader(
        Clips(recordings),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
