# right: worker_init_fn gives each worker its shards; whoever builds another loader must not forget it

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

    def __len__(self):
        return len(self.marks)

    def __getitem__(self, index):
        photo, top, left, kind = self.marks[index].tolist()
        spot = self.decoded[photo][:, top : top + 32, left : left + 32]
        return self.augment(spot), kind, index


class Station(IterableDataset):
    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        for shard in self.shards:
            yield from shard


def own_part(worker):
    info = get_worker_info()
    info.dataset.shards = info.dataset.shards[worker :: info.num_workers]


def build_loader(photos, marks, augment, sampler, num_workers):
    return DataLoader(
        Spots(photos, marks, augment),
        batch_size=64,
        sampler=sampler,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def build_validation(shards, num_workers):
    return DataLoader(
        Station(shards),
        batch_size=64,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        worker_init_fn=own_part,
    )
