# attack: sends a datagram to a server on the grader's machine, which would answer
import socket
from contextlib import suppress

import torch


def worked():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):
        sock.settimeout(0.3)
        sock.sendto(b"hostile_was_here", ("127.0.0.1", 47831))
        return sock.recv(9) == b"answered"
    return False


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
