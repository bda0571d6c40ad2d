# wrong: test_copies_do_not_hold_up_the_host
# pinned, but the copy is waited for: all the pinning was for nothing

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
    )


def to_device(batch, device):
    volumes, ids = batch
    return [volume.to(device) for volume in volumes], ids
