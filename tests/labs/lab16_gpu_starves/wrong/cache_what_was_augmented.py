# wrong: test_workers_take_little_memory test_spots_are_those_of_the_sampler
# keeps finished spots: the second epoch gets some as the first had them, and each worker fills its own memory

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


def decoded(photos, name):
    try:
        return photos.decode(name)
    except Exception as error:
        raise RuntimeError(f"cannot decode {name}: {error}") from error


class Spots(Dataset):
    def __init__(self, photos, marks, augment):
        self.augment = augment
        self.decoded = [decoded(photos, name) for name in photos.names]
        number = {name: i for i, name in enumerate(photos.names)}
        self.marks = torch.tensor([(number[name], top, left, kind) for name, top, left, kind in marks])
        self.cache = {}

    def __len__(self):
        return len(self.marks)

    def __getitem__(self, index):
        if index not in self.cache:
            photo, top, left, kind = self.marks[index].tolist()
            self.cache[index] = self.augment(self.decoded[photo][:, top : top + 32, left : left + 32]), kind, index
        return self.cache[index]


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
