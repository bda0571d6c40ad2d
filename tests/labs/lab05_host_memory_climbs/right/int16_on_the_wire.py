# right: whole numbers travel as int16 and become float32 on the card: half the bytes, so it reads twice as far

import torch
from torch.utils.data import DataLoader


def collate(samples):
    volumes, ids = zip(*samples, strict=True)
    return [volume.to(torch.int16) for volume in volumes], list(ids)


def build_loader(dataset, generator):
    return DataLoader(
        dataset,
        batch_size=4,
        shuffle=True,
        generator=generator,
        collate_fn=collate,
        num_workers=2,
        pin_memory=True,
        prefetch_factor=4,
    )


def to_device(batch, device):
    volumes, ids = batch
    return [volume.to(device, non_blocking=True).float() for volume in volumes], ids
