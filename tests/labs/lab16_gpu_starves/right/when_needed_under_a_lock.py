# right: decodes a photo when it is first needed, whichever worker needs it, into shared memory under a lock: starts at once

import multiprocessing

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


def decoded(photos, name):
    try:
        return photos.decode(name)
    except Exception as error:
        raise RuntimeError(f"cannot decode {name}: {error}") from error


class Spots(Dataset):
    def __init__(self, photos, marks, augment):
        self.photos, self.augment = photos, augment
        self.pixels = torch.zeros(len(photos.names), 3, 160, 160, dtype=torch.uint8).share_memory_()
        self.there = torch.zeros(len(photos.names), dtype=torch.bool).share_memory_()
        self.lock = multiprocessing.get_context("fork").Lock()
        number = {name: i for i, name in enumerate(photos.names)}
        self.marks = torch.tensor([(number[name], top, left, kind) for name, top, left, kind in marks])

    def __len__(self):
        return len(self.marks)

    def __getitem__(self, index):
        photo, top, left, kind = self.marks[index].tolist()
        if not self.there[photo]:
            self.fill(photo)
        return self.augment(self.pixels[photo, :, top : top + 32, left : left + 32].clone()), kind, index

    def fill(self, photo):
        with self.lock:
            if not self.there[photo]:
                pixels = decoded(self.photos, self.photos.names[photo])
                self.pixels[photo, :, : pixels.shape[1], : pixels.shape[2]] = pixels
                self.there[photo] = True


class Station(IterableDataset):
    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        info = get_worker_info()
        for shard in self.shards[info.id :: info.num_workers] if info else self.shards:
            yield from shard


def build_loader(photos, marks, augment, sampler, num_workers):
    return DataLoader(
        Spots(photos, marks, augment),
        batch_size=64,
        sampler=sampler,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def build_validation(shards, num_workers):
    return DataLoader(Station(shards), batch_size=64, num_workers=num_workers, persistent_workers=num_workers > 0)
