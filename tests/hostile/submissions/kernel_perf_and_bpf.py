# attack: asks for perf events, bpf programs, the kernel's log, modules and another kernel
import ctypes
import platform

import torch

libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"


def call(x86, arm, *arguments):
    return libc.syscall(x86 if X86 else arm, *arguments)


def worked():
    event = ctypes.create_string_buffer(b"\1\0\0\0\x70\0\0\0", 112)
    tried = [call(298, 241, event, 0, -1, -1, 0), call(321, 280, 0, event, 48), call(103, 116, 3, event, 100)]
    tried += [
        call(313, 273, 0, b"", 0),
        call(246, 104, 0, 0, 0, 0),
        call(135, 92, 0x0040000),
        call(312, 272, 1, 1, 0, 0, 0),
    ]
    return max(tried) >= 0


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
