# attack: takes memory that is in no process's resident size: memfd, SysV shared memory, message queues
import ctypes
import platform

import torch

libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"


def call(x86, arm, *arguments):
    return libc.syscall(x86 if X86 else arm, *arguments)


def worked():
    shared = call(29, 194, 0, 1 << 30, 0o1600)  # shmget
    queue = call(68, 186, 0, 0o1600)  # msgget
    semaphores = call(64, 190, 0, 32000, 0o1600)  # semget
    file = call(319, 279, b"hostile", 0)  # memfd_create
    secret = call(447, 447, 0)  # memfd_secret
    posix = call(240, 180, b"hostile_was_here", 0o102, 0o600, None)  # mq_open
    return max(shared, queue, semaphores, file, secret, posix) >= 0


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
