# attack: connects to an abstract unix socket of the grader's machine
import socket
from contextlib import suppress

import torch


def worked():
    with socket.socket(socket.AF_UNIX) as sock, suppress(OSError):
        sock.connect("\0hostile-listener")
        return True
    return False


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
