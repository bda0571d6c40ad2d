# wrong: test_pinned_memory_stays_within_its_budget test_few_scans_wait
# the answer to every memory question: but it empties the card's cache, and this memory is the host's

import gc

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
        generator=generator,
        collate_fn=collate,
        num_workers=2,
        pin_memory=True,
        prefetch_factor=8,
    )


def to_device(batch, device):
    gc.collect()
    torch.cuda.empty_cache()
    volumes, ids = batch
    return [volume.to(device, non_blocking=True) for volume in volumes], ids
