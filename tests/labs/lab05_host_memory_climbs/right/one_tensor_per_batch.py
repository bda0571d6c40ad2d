# right: a batch's scans lie end to end in one tensor: one block and one copy per batch; a copy more in the worker

import torch
from torch.utils.data import DataLoader


def collate(samples):
    volumes, ids = zip(*samples, strict=True)
    return torch.cat(volumes), [len(volume) for volume in volumes], list(ids)


def build_loader(dataset, generator):
    return DataLoader(
        dataset,
        batch_size=4,
        shuffle=True,
        generator=generator,
        collate_fn=collate,
        num_workers=2,
        pin_memory=True,
    )


def to_device(batch, device):
    flat, depths, ids = batch
    return flat.to(device, non_blocking=True).split(depths), ids
