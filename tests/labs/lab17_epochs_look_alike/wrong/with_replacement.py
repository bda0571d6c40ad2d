# wrong: test_every_recording_once_with_its_label
# draws the recordings with replacement too, for more variety: a third of them is missing from each epoch

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, get_worker_info


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


def own_generator(worker):
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(
        Clips(recordings, seed),
        batch_size=8,
        sampler=RandomSampler(recordings, replacement=True, generator=generator),
        generator=generator,
        num_workers=num_workers,
        persistent_workers=persistent_workers,
        worker_init_fn=own_generator,
    )
