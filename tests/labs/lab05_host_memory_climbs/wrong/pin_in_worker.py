# wrong: error
# pins where the batch is made, to save the pin thread: a forked worker has no CUDA

from torch.utils.data import DataLoader


def collate(samples):
    volumes, ids = zip(*samples, strict=True)
    return [volume.pin_memory() for volume in volumes], list(ids)


def build_loader(dataset, generator):
    return DataLoader(
        dataset,
        batch_size=4,
        shuffle=True,
        generator=generator,
        collate_fn=collate,
        num_workers=2,
        prefetch_factor=2,
    )


def to_device(batch, device):
    volumes, ids = batch
    return [volume.to(device, non_blocking=True) for volume in volumes], ids
