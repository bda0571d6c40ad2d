# attack: makes namespaces, mounts, and joins those of others
import ctypes
import platform

import torch

libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"


def call(x86, arm, *arguments):
    return libc.syscall(x86 if X86 else arm, *arguments)


def worked():
    flags = [1 << n for n in (7, 17, 25, 26, 27, 28, 29, 30)]
    tried = [call(272, 97, flag) for flag in flags]  # unshare
    tried += [call(308, 268, fd, 0) for fd in range(4)]  # setns
    tried += [call(165, 40, b"none", b"/tmp", b"tmpfs", 0, None), call(166, 39, b"/proc", 2)]  # mount, umount2
    tried += [call(155, 41, b"/tmp", b"/tmp"), call(428, 428, -100, b"/", 1), call(430, 430, b"tmpfs", 0)]
    tried += [call(435, 435, ctypes.byref((ctypes.c_uint64 * 11)(0x10000000)), 88)]  # clone3 with a user namespace
    return max(tried) >= 0


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
