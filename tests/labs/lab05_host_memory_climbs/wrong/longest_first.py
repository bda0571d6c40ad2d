# wrong: test_pinned_memory_stays_within_its_budget test_every_scan_once_in_an_order_of_the_generator
# like sizes side by side: each size of block is needed by all waiting scans at once, one size after the other

from torch.utils.data import DataLoader


def collate(samples):
    volumes, ids = zip(*samples, strict=True)
    return list(volumes), list(ids)


def build_loader(dataset, generator):
    order = sorted(range(len(dataset)), key=dataset.depth, reverse=True)
    return DataLoader(
        dataset, batch_size=4, sampler=order, collate_fn=collate, num_workers=2, prefetch_factor=2, pin_memory=True
    )


def to_device(batch, device):
    volumes, ids = batch
    return [volume.to(device, non_blocking=True) for volume in volumes], ids
