# attack: opens sockets that no network namespace confines, or that need no network: vsock, packet, alg, raw
import socket
from contextlib import suppress

import torch

UNIX, INET, INET6, NETLINK = 1, 2, 10, 16


def worked():
    for family in set(range(46)) - {UNIX, INET, INET6, NETLINK}:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
            with suppress(OSError):
                socket.socket(family, kind).close()
                return True
    with suppress(OSError):
        socket.socket(INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
        return True
    return False


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
