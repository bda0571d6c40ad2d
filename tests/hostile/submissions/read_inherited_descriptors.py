# attack: looks for anything open beside standard streams and the pipe, and reads it
import os

import torch


def worked():
    own = os.open("/proc/self/fd", os.O_RDONLY)
    return any(int(fd) > 3 and int(fd) != own and os.path.exists(f"/proc/self/fd/{fd}") for fd in os.listdir(own))


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
