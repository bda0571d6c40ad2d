# right: a thread reads and pins, two batches ahead at most: no processes, but it shares Python's lock

import queue
import threading

import torch


class Ahead:
    """Batches that a thread reads and pins, at most two of them in advance."""

    def __init__(self, dataset, generator):
        self.dataset, self.generator = dataset, generator

    def __iter__(self):
        order = torch.randperm(len(self.dataset), generator=self.generator).tolist()
        ready = queue.Queue(maxsize=2)
        threading.Thread(target=self.read, args=(order, ready), daemon=True).start()
        while (batch := ready.get()) is not None:
            yield batch

    def read(self, order, ready):
        for start in range(0, len(order), 4):
            samples = [self.dataset[i] for i in order[start : start + 4]]
            ready.put(([volume.pin_memory() for volume, _ in samples], [i for _, i in samples]))
        ready.put(None)


def build_loader(dataset, generator):
    return Ahead(dataset, generator)


def to_device(batch, device):
    volumes, ids = batch
    return [volume.to(device, non_blocking=True) for volume in volumes], ids
