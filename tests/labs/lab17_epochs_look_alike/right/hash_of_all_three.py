# right: Python's own generator from a string of seed, epoch and index; the epoch travels with the index

import random

import torch
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, recordings, seed):
        self.recordings, self.seed = recordings, seed

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, asked):
        epoch, index = asked
        rng = random.Random(f"{self.seed} {epoch} {index}")
        signal, label = self.recordings[index]
        start = rng.randrange(signal.shape[1] - 31)
        clip = signal[:, start : start + 32].clone()
        clip[0] *= rng.uniform(0.8, 1.25)
        return clip, label, index


class Order:
    def __init__(self, count, seed):
        self.count, self.epoch, self.generator = count, 0, torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.count

    def __iter__(self):
        self.epoch += 1
        return ((self.epoch, i) for i in torch.randperm(self.count, generator=self.generator).tolist())


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    return DataLoader(
        Clips(recordings, seed),
        batch_size=8,
        sampler=Order(len(recordings), seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
