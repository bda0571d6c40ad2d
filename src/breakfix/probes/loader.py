"""How far a loader has run ahead: wait until it rests, and count the bytes that wait in shared memory.

    for batch in loader:
        settle()                                        # the workers have done all that they may
        print(shared_memory_bytes() / 2**20, "MiB wait in /dev/shm")

Both read /proc, so both are for Linux.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Any


def shared_memory_bytes() -> int:
    """Bytes in /dev/shm that this process and its workers have open: batches on their way. Linux only.

    Its own files are counted, not the file system's total, which others share. Small if the batches go on to be pinned.
    """
    where = os.stat("/dev/shm").st_dev
    sizes = {}
    for process in _family():
        for fd in _entries(f"/proc/{process}/fd"):
            try:
                info = os.stat(f"/proc/{process}/fd/{fd}")
            except OSError:  # closed meanwhile
                continue
            if info.st_dev == where:
                sizes[info.st_ino] = info.st_size
    return sum(sizes.values())


def settle(progress: Callable[[], Any] = lambda: None, still: float = 0.0, timeout: float = 5.0) -> bool:
    """Wait until all other threads of this process and of its workers sleep: the loader is as far ahead as it will go.

    Then what is counted does not depend on who was faster. Whoever waits for a disk or a network sleeps too: if the
    dataset does, ask for `still` seconds without a change of what `progress` returns. False after `timeout` seconds.
    """
    deadline, before, since = time.monotonic() + timeout, None, 0.0
    while time.monotonic() < deadline:
        asleep = _asleep()
        now = None if asleep is None else (asleep, progress())
        if now is None or now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since >= still:
            return True
        time.sleep(0.002)
    return False


_ASLEEP = (b"S", b"Z", b"X")  # waiting, or ended


def _asleep() -> dict[str, bytes] | None:
    """How often each other thread has been switched out, or None if one of them is not asleep.

    Two equal answers in a row: nobody ran in between, as running ends in being switched out.
    """
    found = {}
    own = f"/proc/{os.getpid()}/task/{threading.get_native_id()}"
    for process in _family():
        for thread in _entries(f"/proc/{process}/task"):
            path = f"/proc/{process}/task/{thread}"
            status = _read(f"{path}/status") if path != own else b""
            if status and status.partition(b"\nState:\t")[2][:1] not in _ASLEEP:
                return None
            found[path] = status.partition(b"\nvoluntary_ctxt_switches:")[2]
    return found


def _family() -> list[int]:
    """This process and its descendants."""
    found = [os.getpid()]
    for process in found:
        for thread in _entries(f"/proc/{process}/task"):
            found += map(int, (_read(f"/proc/{process}/task/{thread}/children") or b"").split())
    return found


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:  # it has just ended
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
