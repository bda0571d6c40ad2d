# right: every scan is padded to the longest: one size of block serves all epochs; costs bytes on the wire

from torch.nn import functional as F
from torch.utils.data import DataLoader


class Padded:
    """A collate function that fills each scan up to `depth` slices with zeros."""

    def __init__(self, depth):
        self.depth = depth

    def __call__(self, samples):
        volumes, ids = zip(*samples, strict=True)
        return [F.pad(v, (0, 0, 0, 0, 0, self.depth - len(v))) for v in volumes], list(ids)


def build_loader(dataset, generator):
    longest = max(dataset.depth(i) for i in range(len(dataset)))
    return DataLoader(
        dataset,
        batch_size=4,
        shuffle=True,
        generator=generator,
        collate_fn=Padded(longest),
        num_workers=2,
        prefetch_factor=1,
        pin_memory=True,
    )


def to_device(batch, device):
    volumes, ids = batch
    return [volume.to(device, non_blocking=True) for volume in volumes], ids
