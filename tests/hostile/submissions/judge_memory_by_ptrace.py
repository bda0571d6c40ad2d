# attack: attaches a debugger to its parents, to others, and to a child of its own
import ctypes
import os

import torch

libc = ctypes.CDLL(None, use_errno=True)
TRACEME, ATTACH, SEIZE = 0, 16, 0x4206


def worked():
    if os.fork() == 0:
        os._exit(libc.ptrace(TRACEME, 0, 0, 0) == 0)
    if os.waitstatus_to_exitcode(os.wait()[1]) == 1:
        return True
    targets = {os.getppid(), *range(1, 3000)} - {os.getpid()}
    return any(libc.ptrace(how, pid, 0, 0) == 0 for how in (ATTACH, SEIZE) for pid in targets)


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
