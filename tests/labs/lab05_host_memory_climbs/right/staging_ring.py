# right: two pinned buffers, made once and filled in turn: memory known in advance, but code to maintain

import torch
from torch.utils.data import DataLoader


def collate(samples):
    volumes, ids = zip(*samples, strict=True)
    return torch.cat(volumes), [len(volume) for volume in volumes], list(ids)


class Ring:
    """Two pinned buffers, used in turn; a buffer is filled again only when its last copy to the card has ended."""

    def __init__(self, size):
        self.buffers = [torch.empty(size, pin_memory=True) for _ in range(2)]
        self.copied = [None, None]
        self.turn = 0

    def send(self, flat, device):
        self.turn = 1 - self.turn
        if self.copied[self.turn] is not None:
            self.copied[self.turn].synchronize()
        staged = self.buffers[self.turn][: flat.numel()].view(flat.shape).copy_(flat)
        on_device = staged.to(device, non_blocking=True)
        if device.type == "cuda":
            self.copied[self.turn] = torch.cuda.current_stream(device).record_event()
        return on_device


class Staged:
    def __init__(self, loader, ring):
        self.loader, self.ring = loader, ring

    def __iter__(self):
        for batch in self.loader:
            yield self.ring, batch


def build_loader(dataset, generator):
    longest = sorted(dataset.depth(i) for i in range(len(dataset)))[-4:]
    side = dataset[0][0].shape[-1]
    loader = DataLoader(
        dataset, batch_size=4, shuffle=True, generator=generator, collate_fn=collate, num_workers=2, prefetch_factor=2
    )
    return Staged(loader, Ring(sum(longest) * side * side))


def to_device(batch, device):
    ring, (flat, depths, ids) = batch
    return ring.send(flat, device).split(depths), ids
