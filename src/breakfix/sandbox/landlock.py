"""Landlock: which files a process and all that it starts may open from now on. Linux 6.2, no rights needed."""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from breakfix.sandbox import kernel

LEAST_ABI = 3  # below, a file that may not be written can still be cut short
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_ALL = (1 << 15) - 1
_CHANGE = _ALL & ~(1 << 6 | 1 << 11)  # all but making devices
_OF_A_FILE = _EXECUTE | _WRITE | _READ | _TRUNCATE
_TCP, _OUTSIDE_SIGNALS_AND_SOCKETS = 3, 3  # bind and connect, ABI 4; signals and abstract sockets, ABI 6


def abi() -> int:
    """The version that this kernel has; 0 if none."""
    return max(0, kernel.syscall(_CREATE, None, 0, _VERSION))


def rules(read: Iterable[Path], change: Iterable[Path]) -> int:
    """A ruleset, as a descriptor: what may be read and run, and where all may be done. Raises OSError."""
    version = abi()
    wanted = struct.pack("QQQ", _ALL, _TCP if version >= 4 else 0, _OUTSIDE_SIGNALS_AND_SOCKETS if version >= 6 else 0)
    head = ctypes.create_string_buffer(wanted, len(wanted))
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = kernel.checked("landlock_create_ruleset", kernel.syscall(_CREATE, head, size, 0))
    for paths, access in ((read, _READ | _LIST | _EXECUTE), (change, _CHANGE)):
        for path in paths:
            _allow(ruleset, path, access)
    return ruleset


def enter(ruleset: int) -> None:
    """Keep to `ruleset` from now on. Raises OSError."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.checked("landlock_restrict_self", kernel.syscall(_RESTRICT, ruleset, 0))
    os.close(ruleset)


def _allow(ruleset: int, path: Path, access: int) -> None:
    """What does not exist needs no rule."""
    if not path.exists():
        return
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", access if path.is_dir() else access & _OF_A_FILE, handle)
        buffer = ctypes.create_string_buffer(rule, len(rule))
        kernel.checked(f"landlock_add_rule {path}", kernel.syscall(_ADD, ruleset, _PATH_BENEATH, buffer, 0))
    finally:
        os.close(handle)
