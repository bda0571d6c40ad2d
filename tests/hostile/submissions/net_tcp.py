# attack: connects to a server on the grader's machine and to one in the world
import socket
from contextlib import suppress

import torch


def worked():
    for address in (("127.0.0.1", 47831), ("192.0.2.1", 80), ("::1", 47831)):
        with suppress(OSError):
            socket.create_connection(address, timeout=0.2).close()
            return True
    return False


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
