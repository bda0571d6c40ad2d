# wrong: test_the_seed_alone_decides test_workers_and_trainer_keep_their_work
# a new loader for each epoch, seeded by seed + epoch: workers cannot last, and the next seed is this one, an epoch later

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
        self.recordings, self.rng = recordings, np.random.default_rng(seed)

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, index):
        signal, label = self.recordings[index]
        return cut(signal, self.rng), label, index


def own_generator(worker):
    info = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


class Epochs:
    def __init__(self, recordings, seed, num_workers):
        self.recordings, self.seed, self.num_workers, self.epoch = recordings, seed, num_workers, -1

    def __iter__(self):
        self.epoch += 1
        loader = DataLoader(
            Clips(self.recordings, self.seed + self.epoch),
            batch_size=8,
            shuffle=True,
            generator=torch.Generator().manual_seed(self.seed + self.epoch),
            num_workers=self.num_workers,
            worker_init_fn=own_generator,
        )
        return iter(loader)


def build_loader(recordings, seed, num_workers, persistent_workers=False):
    return Epochs(recordings, seed, num_workers)
