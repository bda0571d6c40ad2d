# honest: a pool of processes, a queue and a lock of multiprocessing, and a program of the system
import multiprocessing
import subprocess

import torch


def square(x):
    return x * x


def totals(batches):
    fork = multiprocessing.get_context("fork")
    with fork.Lock(), fork.Pool(2) as pool:
        assert pool.map(square, [1, 2, 3]) == [1, 4, 9]
    assert subprocess.run(["sh", "-c", "echo hello"], capture_output=True, text=True).stdout == "hello\n"
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.sum(0, dtype=torch.float64)
    return total
