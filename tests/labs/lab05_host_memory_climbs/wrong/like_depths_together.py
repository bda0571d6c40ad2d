# wrong: test_every_scan_once_in_an_order_of_the_generator
# draws pools of five batches and sorts each by depth, as padding would like it: what meets in a batch is no longer chance

import torch
from torch.utils.data import DataLoader


class ByDepth:
    """Batches of scans of like depth: each pool of five batches is sorted, then its batches are shuffled."""

    def __init__(self, dataset, generator):
        self.dataset, self.generator = dataset, generator

    def __len__(self):
        return (len(self.dataset) + 3) // 4

    def __iter__(self):
        drawn = torch.randperm(len(self.dataset), generator=self.generator).tolist()
        for start in range(0, len(drawn), 20):
            pool = sorted(drawn[start : start + 20], key=self.dataset.depth)
            batches = [pool[i : i + 4] for i in range(0, len(pool), 4)]
            last = [batch for batch in batches if len(batch) < 4]
            full = [batch for batch in batches if len(batch) == 4]
            for turn in torch.randperm(len(full), generator=self.generator).tolist():
                yield full[turn]
            yield from last


def collate(samples):
    volumes, ids = zip(*samples, strict=True)
    return list(volumes), list(ids)


def build_loader(dataset, generator):
    return DataLoader(
        dataset,
        batch_sampler=ByDepth(dataset, generator),
        collate_fn=collate,
        num_workers=2,
        pin_memory=True,
        prefetch_factor=2,
    )


def to_device(batch, device):
    volumes, ids = batch
    return [volume.to(device, non_blocking=True) for volume in volumes], ids
