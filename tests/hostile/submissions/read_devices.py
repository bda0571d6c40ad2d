# attack: opens disks, memory, terminals and the kernel's log, and types into the grader's terminal
import fcntl
import glob
import os
from contextlib import suppress

import torch

TIOCSTI = 0x5412
HARMLESS = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/stdin", "/dev/stdout"}


def worked():
    for path in {*glob.glob("/dev/*"), "/dev/tty", "/dev/mem", "/dev/kmsg", "/dev/ptmx", "/dev/fuse"} - HARMLESS:
        with suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            if path != "/dev/stderr":
                return True
    for fd in range(3):
        with suppress(OSError):
            fcntl.ioctl(fd, TIOCSTI, b"x")
            return True
    with suppress(OSError):
        os.mknod("/tmp/disk", 0o600 | 0o060000, os.makedev(8, 0))
        return True
    return False


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
