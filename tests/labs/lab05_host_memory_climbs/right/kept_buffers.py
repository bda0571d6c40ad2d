# right: pinned buffers that the module keeps from loader to loader and enlarges when a batch needs it; known memory, but shared state to mind

import torch
from torch.utils.data import DataLoader

SLOTS = 2
buffers = [None] * SLOTS
copied = [None] * SLOTS


def collate(samples):
    volumes, ids = zip(*samples, strict=True)
    return torch.cat(volumes), [len(volume) for volume in volumes], list(ids)


def stage(flat, slot):
    """The batch in a pinned buffer; the buffer's last copy to the card has ended before it is filled again."""
    if copied[slot] is not None:
        copied[slot].synchronize()
    if buffers[slot] is None or buffers[slot].numel() < flat.numel():
        buffers[slot] = torch.empty(flat.numel(), pin_memory=True)
    return buffers[slot][: flat.numel()].view(flat.shape).copy_(flat)


class Staged:
    """The loader's batches in pinned memory, with the number of their buffer."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for turn, (flat, depths, ids) in enumerate(self.loader):
            yield turn % SLOTS, stage(flat, turn % SLOTS), depths, ids


def build_loader(dataset, generator):
    loader = DataLoader(
        dataset, batch_size=4, shuffle=True, generator=generator, collate_fn=collate, num_workers=2, prefetch_factor=2
    )
    return Staged(loader)


def to_device(batch, device):
    slot, flat, depths, ids = batch
    on_device = flat.to(device, non_blocking=True)
    if device.type == "cuda":
        copied[slot] = torch.cuda.current_stream(device).record_event()
    return on_device.split(depths), ids
