# wrong: test_every_scan_once_in_an_order_of_the_generator
# shuffles from a seed of its own: the run can no longer be repeated from the generator that it is given

import torch
from torch.utils.data import DataLoader


def collate(samples):
    volumes, ids = zip(*samples, strict=True)
    return list(volumes), list(ids)


def build_loader(dataset, generator):
    return DataLoader(
        dataset,
        batch_size=4,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        collate_fn=collate,
        num_workers=2,
        pin_memory=True,
        prefetch_factor=2,
    )


def to_device(batch, device):
    volumes, ids = batch
    return [volume.to(device, non_blocking=True) for volume in volumes], ids
