# wrong: test_workers_and_trainer_keep_their_work
# sets torch's global generator for each clip: with no workers the trainer's dropout starts from there each time

import torch
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, recordings):
        self.recordings = recordings

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, asked):
        index, key = asked
        signal, label = self.recordings[index]
        torch.manual_seed(key)
        start = int(torch.randint(signal.shape[1] - 31, ()))
        clip = signal[:, start : start + 32].clone()
        clip[0] *= 0.8 + 0.45 * torch.rand(())
        return clip, label, index


class Order:
    def __init__(self, count, seed):
        self.count, self.generator = count, torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.count

    def __iter__(self):
        order = torch.randperm(self.count, generator=self.generator).tolist()
        keys = torch.randint(2**63 - 1, (self.count,), generator=self.generator).tolist()
        return iter(list(zip(order, keys, strict=True)))


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    return DataLoader(
        Clips(recordings),
        batch_size=8,
        sampler=Order(len(recordings), seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
