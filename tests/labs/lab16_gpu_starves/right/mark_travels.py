# right: marks stay in the trainer: the sampler's number is sent to a worker together with its mark; more bytes per sample

from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


def decoded(photos, name):
    try:
        return photos.decode(name)
    except Exception as error:
        raise RuntimeError(f"cannot decode {name}: {error}") from error


class Spots(Dataset):
    def __init__(self, photos, augment):
        self.augment = augment
        self.decoded = {name: decoded(photos, name) for name in photos.names}

    def __getitem__(self, asked):
        index, (name, top, left, kind) = asked
        return self.augment(self.decoded[name][:, top : top + 32, left : left + 32]), kind, index


class WithMarks:
    def __init__(self, sampler, marks):
        self.sampler, self.marks = sampler, list(marks)

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        return ((index, self.marks[index]) for index in self.sampler)


class Station(IterableDataset):
    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        info = get_worker_info()
        for shard in self.shards[info.id :: info.num_workers] if info else self.shards:
            yield from shard


def build_loader(photos, marks, augment, sampler, num_workers):
    return DataLoader(
        Spots(photos, augment),
        batch_size=64,
        sampler=WithMarks(sampler, marks),
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def build_validation(shards, num_workers):
    return DataLoader(Station(shards), batch_size=64, num_workers=num_workers, persistent_workers=num_workers > 0)
