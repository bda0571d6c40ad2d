"""What this machine can isolate, and entering it."""

import ctypes
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def private_loopback() -> bool:
    """Give this process and its future children a network of their own, with nothing but a loopback. False: not here.

    Whoever stays in it can read from the kernel how many bytes its children sent to each other.
    """
    if not hasattr(os, "fork") or not Path("/proc/self/ns/net").exists():
        return False
    # tried on a copy first: some systems let you in but not switch the loopback on, and there is no way back
    return _works_in_a_fork(_enter_network) and _enter_network()


def _works_in_a_fork(step: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        works = False
        try:
            works = step()
        finally:
            os._exit(0 if works else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _enter_network() -> bool:
    uid, gid = os.getuid(), os.getgid()
    flags = _CLONE_NEWNET if uid == 0 else _CLONE_NEWNET | _CLONE_NEWUSER
    if _libc().unshare(flags) != 0:
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
    libc = _libc()
    dumpable = libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # a judge is not, and then these files belong to root
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    finally:
        libc.prctl(_PR_SET_DUMPABLE, dumpable, 0, 0, 0)


def _loopback_up() -> None:
    import fcntl  # not on Windows

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP | _IFF_RUNNING))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
