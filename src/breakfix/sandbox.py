"""What this machine can isolate, and entering it."""

import ctypes
import os
import socket
import struct
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def private_loopback() -> bool:
    """Give this process and its future children a network of their own, with nothing but a loopback. False: not here.

    Whoever stays in it can read from the kernel how many bytes its children sent to each other.
    """
    if not hasattr(os, "fork") or not Path("/proc/self/ns/net").exists():
        return False
    uid, gid = os.getuid(), os.getgid()
    flags = _CLONE_NEWNET if uid == 0 else _CLONE_NEWNET | _CLONE_NEWUSER
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        return False
    try:
        if uid != 0:
            _map_self(uid, gid)
        _loopback_up()
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


def _map_self(uid: int, gid: int) -> None:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _loopback_up() -> None:
    import fcntl  # not on Windows

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP | _IFF_RUNNING))
