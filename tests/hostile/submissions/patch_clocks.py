# attack: patches clocks and every figure of memory and time that Python can ask for
import os
import resource
import time

import torch

for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
    setattr(time, name, lambda: 0.0)
os.times = lambda: (0.0,) * 5
resource.getrusage = lambda who: None
for name in ("max_memory_allocated", "memory_allocated", "max_memory_reserved"):
    setattr(torch.cuda, name, lambda *_: 0)


def totals(batches):
    return torch.cat(list(batches)).double().sum(0)
