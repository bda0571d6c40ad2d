# right: the shards as a map-style dataset of shards, one per batch of the loader, cut into batches by the trainer

import torch
from torch.utils.data import DataLoader, Dataset


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


class Shards(Dataset):
    def __init__(self, shards):
        self.shards = shards

    def __len__(self):
        return len(self.shards)

    def __getitem__(self, index):
        spots, kinds, ids = zip(*self.shards[index], strict=True)
        return torch.stack(spots), torch.tensor(kinds), torch.tensor(ids)


def build_loader(photos, marks, augment, sampler, num_workers):
    return DataLoader(
        Spots(photos, marks, augment),
        batch_size=64,
        sampler=sampler,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def build_validation(shards, num_workers):
    return DataLoader(Shards(shards), batch_size=None, num_workers=num_workers, persistent_workers=num_workers > 0)
