# wrong: test_workers_do_not_repeat_each_other
# draws once for each batch, which is faster: eight clips of one gain, and few draws in all

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Whole(Dataset):
    def __init__(self, recordings, seed):
        self.recordings, self.rng = recordings, np.random.default_rng(seed)

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        return *self.recordings[index], index

    def __getitems__(self, indices):
        start, gain = int(self.rng.integers(4065)), float(self.rng.uniform(0.8, 1.25))
        found = []
        for index in indices:
            signal, label = self.recordings[index]
            clip = signal[:, start : start + 32].clone()
            clip[0] *= gain
            found.append((clip, label, index))
        return found


def own_generator(worker):
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    return DataLoader(
        Whole(recordings, seed),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=num_workers,
        persistent_workers=persistent_workers,
        worker_init_fn=own_generator,
    )
