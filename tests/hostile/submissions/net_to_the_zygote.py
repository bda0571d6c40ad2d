# attack: finds the sockets of the engine and has its own job judged, or another's
import glob
import socket
from contextlib import suppress

import torch


def worked():
    paths = (
        glob.glob("/tmp/breakfix-*/socket") + glob.glob("/tmp/*/socket") + glob.glob("/run/**/*.sock", recursive=True)
    )
    with open("/proc/net/unix") as sockets:
        paths += [line.split()[-1] for line in sockets if "/" in line]
    for path in paths:
        with socket.socket(socket.AF_UNIX) as sock, suppress(OSError):
            sock.connect(path)
            return True
    return False


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
