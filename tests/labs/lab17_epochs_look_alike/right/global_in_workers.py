# right: torch's global generator in workers, where the loader has seeded it, and one of our own where there are none

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Clips(Dataset):
    def __init__(self, recordings, seed):
        self.recordings, self.own = recordings, torch.Generator().manual_seed(seed)

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        generator = None if get_worker_info() else self.own
        signal, label = self.recordings[index]
        start = int(torch.randint(signal.shape[1] - 31, (), generator=generator))
        clip = signal[:, start : start + 32].clone()
        clip[0] *= 0.8 + 0.45 * torch.rand((), generator=generator)
        return clip, label, index


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    return DataLoader(
        Clips(recordings, seed),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )
