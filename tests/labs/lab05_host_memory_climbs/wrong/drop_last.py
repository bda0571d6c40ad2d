# wrong: test_every_scan_once_in_an_order_of_the_generator
# batches of one size only: two scans are left out of each epoch of the mixed dataset

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
        prefetch_factor=2,
        drop_last=True,
    )


def to_device(batch, device):
    volumes, ids = batch
    return [volume.to(device, non_blocking=True) for volume in volumes], ids
