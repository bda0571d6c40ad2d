# attack: forks into a new user namespace by clone, where it would have every right
import ctypes
import platform

import torch

libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"


def call(x86, arm, *arguments):
    return libc.syscall(x86 if X86 else arm, *arguments)


def worked():
    NEWUSER, SIGCHLD = 0x10000000, 17
    pid = call(56, 220, NEWUSER | SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        libc._exit(0)
    return pid > 0


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
