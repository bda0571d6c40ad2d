# wrong: test_a_broken_photo_is_named
# leaves out the spots of what cannot be decoded, without a word: the set shrinks, and nobody is told

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info


def decoded(photos, name):
    try:
        return photos.decode(name)
    except RuntimeError:
        return None


def collate(samples):
    return default_collate([sample for sample in samples if sample is not None])


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
        if self.decoded[photo] is None:
            return None
        return self.augment(self.decoded[photo][:, top : top + 32, left : left + 32]), kind, index


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
        collate_fn=collate,
    )


def build_validation(shards, num_workers):
    return DataLoader(Station(shards), batch_size=64, num_workers=num_workers, persistent_workers=num_workers > 0)
