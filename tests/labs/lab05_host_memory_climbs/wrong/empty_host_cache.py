# wrong: test_pinned_memory_stays_within_its_budget test_few_scans_wait
# gives the host's cache back after each epoch: the peak within the first epoch is as high as before

import torch
from torch.utils.data import DataLoader


def collate(samples):
    volumes, ids = zip(*samples, strict=True)
    return list(volumes), list(ids)


class GivesBack:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        yield from self.loader
        # the public name is new in torch 2.14
        getattr(torch.accelerator, "empty_host_cache", torch._C._host_emptyCache)()


def build_loader(dataset, generator):
    loader = DataLoader(
        dataset,
        batch_size=4,
        shuffle=True,
        generator=generator,
        collate_fn=collate,
        num_workers=2,
        prefetch_factor=8,
        pin_memory=True,
    )
    return GivesBack(loader)


def to_device(batch, device):
    volumes, ids = batch
    return [volume.to(device, non_blocking=True) for volume in volumes], ids
