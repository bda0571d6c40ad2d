# wrong: test_values_are_exact
# two pinned buffers, used again without asking whether the copy has ended: the card gets the next batch's values
# needs: cuda

import torch
from torch.utils.data import DataLoader


def collate(samples):
    volumes, ids = zip(*samples, strict=True)
    return torch.cat(volumes), [len(volume) for volume in volumes], list(ids)


class Staged:
    """The loader's batches, each in one of two pinned buffers."""

    def __init__(self, loader, size):
        self.loader = loader
        self.buffers = [torch.empty(size, pin_memory=True) for _ in range(2)]

    def __iter__(self):
        for turn, (flat, depths, ids) in enumerate(self.loader):
            staged = self.buffers[turn % 2][: flat.numel()].view(flat.shape).copy_(flat)
            yield staged, depths, ids


def build_loader(dataset, generator):
    longest = sorted(dataset.depth(i) for i in range(len(dataset)))[-4:]
    side = dataset[0][0].shape[-1]
    loader = DataLoader(
        dataset, batch_size=4, shuffle=True, generator=generator, collate_fn=collate, num_workers=2, prefetch_factor=2
    )
    return Staged(loader, sum(longest) * side * side)


def to_device(batch, device):
    flat, depths, ids = batch
    return flat.to(device, non_blocking=True).split(depths), ids
