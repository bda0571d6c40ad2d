# attack: writes to /proc/sys, /sys and the kernel's switches
import glob
from contextlib import suppress

import torch

PLACES = "/proc/sys/kernel/*", "/proc/sys/vm/*", "/proc/sys/fs/*", "/proc/sys/net/*/*", "/proc/sys/user/*", "/proc/s*"


def worked():
    for path in [p for place in (*PLACES, "/sys/*", "/sys/kernel/*", "/sys/fs/cgroup/*") for p in glob.glob(place)]:
        with suppress(OSError), open(path, "r+b", buffering=0) as file:
            file.write(file.read())  # what is there already: should it work, no harm is done
            return True
    return False


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
