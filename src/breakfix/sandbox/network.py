"""A network with nothing but a loopback, and how many bytes went over it."""

import os
import socket
import struct
from pathlib import Path

from breakfix.sandbox import kernel
from breakfix.sandbox.kernel import works_in_a_fork

_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def private_loopback() -> bool:
    """Give this process and its future children a network of their own, with nothing but a loopback. False: not here.

    Whoever stays in it can read from the kernel how many bytes its children sent to each other.
    """
    if not hasattr(os, "fork") or not Path("/proc/self/ns/net").exists():
        return False
    # tried on a copy first: some systems let you in but not switch the loopback on, and there is no way back
    return works_in_a_fork(_enter_network) and _enter_network()


def _enter_network() -> bool:
    uid, gid = os.getuid(), os.getgid()
    try:
        kernel.unshare(kernel.NEWNET if uid == 0 else kernel.NEWNET | kernel.NEWUSER)
        if uid != 0:
            kernel.map_self(uid, gid)
        loopback_up()
    except OSError:
        return False
    return True


def loopback_bytes() -> int:
    """Bytes received on this network's loopback so far, as the kernel counts them."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[0])
    return 0


def loopback_up() -> None:
    """Switch on the loopback of this network namespace."""
    import fcntl  # not on Windows

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP | _IFF_RUNNING))
