# attack: puts keys into a keyring that outlives it and looks for those of others
import ctypes
import platform

import torch

libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"


def call(x86, arm, *arguments):
    return libc.syscall(x86 if X86 else arm, *arguments)


def worked():
    key = call(248, 217, b"user", b"hostile_was_here", b"x", 1, -4)  # add_key, the user's keyring
    return key >= 0 or call(250, 219, 0, -3, 1) >= 0 or call(249, 218, b"user", b"any", None, -3) >= 0


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
