# wrong: test_workers_take_little_memory
# gc.freeze before the fork: it stops the collector, and it is reference counts that are written

import gc

from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


def decoded(photos, name):
    try:
        return photos.decode(name)
    except Exception as error:
        raise RuntimeError(f"cannot decode {name}: {error}") from error


class Spots(Dataset):
    def __init__(self, photos, marks, augment):
        self.augment = augment
        self.decoded = {name: decoded(photos, name) for name in photos.names}
        self.marks = list(marks)
        gc.collect()
        gc.freeze()

    def __len__(self):
        return len(self.marks)

    def __getitem__(self, index):
        name, top, left, kind = self.marks[index]
        return self.augment(self.decoded[name][:, top : top + 32, left : left + 32]), kind, index


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
