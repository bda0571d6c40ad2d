# wrong: test_the_next_batch_is_ready
# without workers nothing is read ahead: one batch on the host, and a card that waits for every scan

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
        num_workers=0,
        pin_memory=True,
    )


def to_device(batch, device):
    volumes, ids = batch
    return [volume.to(device, non_blocking=True) for volume in volumes], ids
