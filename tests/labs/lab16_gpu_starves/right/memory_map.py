# right: decoded photos in a file without a name, mapped by everybody: no longer bound by memory, and the disk is read again

import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


def decoded(photos, name):
    try:
        return photos.decode(name)
    except Exception as error:
        raise RuntimeError(f"cannot decode {name}: {error}") from error


class Spots(Dataset):
    def __init__(self, photos, marks, augment):
        self.augment, self.file, self.shapes, self.starts = augment, tempfile.TemporaryFile(), [], []  # noqa: SIM115
        for name in photos.names:
            pixels = decoded(photos, name)
            self.shapes.append(pixels.shape)
            self.starts.append(self.file.tell())
            self.file.write(pixels.numpy().tobytes())
        self.pixels = np.memmap(self.file, dtype=np.uint8, mode="r")
        number = {name: i for i, name in enumerate(photos.names)}
        self.marks = np.array([(number[name], top, left, kind) for name, top, left, kind in marks])

    def __len__(self):
        return len(self.marks)

    def __getitem__(self, index):
        photo, top, left, kind = self.marks[index].tolist()
        start, shape = self.starts[photo], self.shapes[photo]
        pixels = self.pixels[start : start + shape.numel()].reshape(shape)
        return self.augment(torch.from_numpy(pixels[:, top : top + 32, left : left + 32].copy())), kind, index


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
