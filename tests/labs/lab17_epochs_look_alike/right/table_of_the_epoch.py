# right: the trainer draws the whole epoch into shared memory before it begins; a table as long as the dataset

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, recordings):
        self.recordings = recordings
        self.table = torch.zeros(len(recordings), 2, dtype=torch.float64).share_memory_()

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        signal, label = self.recordings[index]
        place, gain = self.table[index].tolist()
        clip = signal[:, int(place) : int(place) + 32].clone()
        clip[0] *= gain
        return clip, label, index


class Epochs:
    def __init__(self, loader, seed):
        self.loader, self.rng = loader, np.random.default_rng(seed)

    def __iter__(self):
        table = self.loader.dataset.table
        table[:, 0] = torch.from_numpy(self.rng.integers(4065, size=len(table)))
        table[:, 1] = torch.from_numpy(self.rng.uniform(0.8, 1.25, len(table)))
        return iter(self.loader)


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    loader = DataLoader(
        Clips(recordings),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
    return Epochs(loader, seed)
