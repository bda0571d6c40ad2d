# right: PyTorch's default prefetching, pinned where there is CUDA, for a batch class of its own: a class to maintain

import torch
from torch.utils.data import DataLoader


class Batch:
    """The scans of a batch and their ids."""

    def __init__(self, samples):
        self.volumes, self.ids = map(list, zip(*samples, strict=True))

    def pin_memory(self):
        self.volumes = [volume.pin_memory() for volume in self.volumes]
        return self


def build_loader(dataset, generator):
    sampler = torch.utils.data.RandomSampler(dataset, generator=generator)
    return DataLoader(
        dataset,
        batch_sampler=torch.utils.data.BatchSampler(sampler, batch_size=4, drop_last=False),
        collate_fn=Batch,
        num_workers=2,
        pin_memory=torch.cuda.is_available(),
    )


def to_device(batch, device):
    return [volume.to(device, non_blocking=True) for volume in batch.volumes], batch.ids
