# right: one tensor in shared memory for all pixels; padded to the largest photo, and it fits spawned workers too

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
        found = [decoded(photos, name) for name in photos.names]
        height, width = (max(photo.shape[i] for photo in found) for i in (1, 2))
        self.pixels = torch.zeros(len(found), 3, height, width, dtype=torch.uint8).share_memory_()
        for place, photo in zip(self.pixels, found, strict=True):
            place[:, : photo.shape[1], : photo.shape[2]] = photo
        number = {name: i for i, name in enumerate(photos.names)}
        self.marks = torch.tensor([(number[n], *rest) for n, *rest in marks], dtype=torch.int32).share_memory_()

    def __len__(self):
        return len(self.marks)

    def __getitem__(self, index):
        photo, top, left, kind = self.marks[index].tolist()
        return self.augment(self.pixels[photo, :, top : top + 32, left : left + 32]), kind, index


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
