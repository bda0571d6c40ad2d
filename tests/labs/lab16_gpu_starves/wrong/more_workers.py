# wrong: test_each_photo_is_decoded_once test_workers_start_once_and_do_the_work test_workers_take_little_memory test_validation_counts_each_record_once test_a_broken_photo_is_named
# the processor is idle, so start twice as many: each decodes as before, and each brings every record

from torch.utils.data import DataLoader, Dataset, IterableDataset


class Spots(Dataset):
    def __init__(self, photos, marks, augment):
        self.photos, self.augment = photos, augment
        self.marks = [{"photo": name, "corner": (top, left), "kind": kind} for name, top, left, kind in marks]

    def __len__(self):
        return len(self.marks)

    def __getitem__(self, index):
        mark = self.marks[index]
        top, left = mark["corner"]
        spot = self.photos.decode(mark["photo"])[:, top : top + 32, left : left + 32]
        return self.augment(spot), mark["kind"], index


class Station(IterableDataset):
    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        for shard in self.shards:
            yield from shard


def build_loader(photos, marks, augment, sampler, num_workers):
    return DataLoader(Spots(photos, marks, augment), batch_size=64, sampler=sampler, num_workers=2 * num_workers)


def build_validation(shards, num_workers):
    return DataLoader(Station(shards), batch_size=64, num_workers=2 * num_workers)
