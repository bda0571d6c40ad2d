# right: workers read, and the trainer cuts the whole batch with its own generator; whole recordings travel to it

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Whole(Dataset):
    def __init__(self, recordings):
        self.recordings = recordings

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        return *self.recordings[index], index


class Cutting:
    def __init__(self, loader, seed):
        self.loader, self.rng = loader, np.random.default_rng(seed)

    def __iter__(self):
        for signals, labels, ids in self.loader:
            starts = self.rng.integers(signals.shape[2] - 31, size=len(ids))
            gains = torch.from_numpy(self.rng.uniform(0.8, 1.25, len(ids))).float()
            clips = torch.stack([signal[:, s : s + 32] for signal, s in zip(signals, starts, strict=True)])
            clips[:, 0] *= gains[:, None]
            yield clips, labels, ids


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    loader = DataLoader(
        Whole(recordings),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
    return Cutting(loader, seed)
