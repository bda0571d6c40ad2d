"""The few system calls of a sandbox that Python has no name for. Each raises OSError where the kernel refuses."""

import ctypes
import os
import platform
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 0x20, 0x1000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 3, 4, 22, 38
SECCOMP_FILTER = 2
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV, _AT_RECURSIVE, _AT_FDCWD = 1, 2, 4, 0x8000, -100
_MOUNT_SETATTR, _CAPABILITY_VERSION = 442, 0x20080522
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def unshare(flags: int) -> None:
    """Leave the namespaces of `flags` for new ones."""
    checked("unshare", _libc().unshare(flags))


def prctl(option: int, *values) -> int:
    """prctl(2)."""
    return checked("prctl", _libc().prctl(option, *values, *[0] * (4 - len(values))))


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    checked(f"mount {target}", _libc().mount(*encoded, ctypes.c_ulong(flags), options.encode()))


def read_only(target: str) -> None:
    """Make a mount and all below it read-only, without set-user-ids and devices. Linux 5.12."""
    wanted = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, 0, 0, 0)
    arguments = (_AT_FDCWD, target.encode(), _AT_RECURSIVE, ctypes.byref(wanted), ctypes.sizeof(wanted))
    checked(f"mount_setattr {target}", _libc().syscall(_MOUNT_SETATTR, *arguments))


def no_more_changes(target: str) -> None:
    """Make a mount read-only, but none of those below it."""
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def change_root(folder: str) -> None:
    """Make `folder`, which is a mount, the root; what was the root is out of reach."""
    os.chdir(folder)
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"no pivot_root known for {platform.machine()}")
    checked("pivot_root", _libc().syscall(number, b".", b"."))
    checked("umount2", _libc().umount2(b".", MNT_DETACH))
    os.chdir("/")


def map_self(uid: int, gid: int) -> None:
    """In a new user namespace: be who one was outside."""
    dumpable = prctl(PR_GET_DUMPABLE)
    prctl(PR_SET_DUMPABLE, 1)  # a judge is not, and then these files belong to root
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    finally:
        prctl(PR_SET_DUMPABLE, dumpable)


def drop_capabilities() -> None:
    """Have no right beyond those of an ordinary user, here and in namespaces of one's own."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    checked("capset", _libc().capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())))


def works_in_a_fork(step: Callable[[], bool]) -> bool:
    """Whether `step` works, tried in a copy of this process, because from some there is no way back."""
    pid = os.fork()
    if pid == 0:
        works = False
        try:
            works = step()
        finally:
            os._exit(0 if works else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def syscall(number: int, *arguments) -> int:
    """syscall(2): what it gives, negative where the kernel refuses."""
    return _libc().syscall(number, *arguments)


def checked(what: str, answer: int) -> int:
    """`answer`, unless it says that the kernel has refused: then OSError."""
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return answer


@lru_cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
