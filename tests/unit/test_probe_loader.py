"""How far a loader is ahead: settled counts against arithmetic, shared memory against the bytes of the batches."""

import os
import threading
import time

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from breakfix.probes.loader import settle, shared_memory_bytes

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="reads /proc")
ROW = 250_000  # float32, so that a row is 1 MB


class Rows(Dataset):
    """60 rows of 1 MB; counts how many have been read, by whichever worker."""

    def __init__(self, seconds: float = 0.0):
        self.read, self.seconds = torch.zeros(1, dtype=torch.int64).share_memory_(), seconds

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> Tensor:
        time.sleep(self.seconds)
        self.read += 1
        return torch.full((ROW,), float(i))


def fresh() -> tuple[Rows, int]:
    rows = Rows()
    return rows, shared_memory_bytes()  # the counter lies there too


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 4), (2, 2), (2, 8)])
def test_workers_times_prefetch_batches_wait_in_shared_memory_and_one_is_in_hand(workers, prefetch):
    rows, before = fresh()
    for _batch in DataLoader(rows, batch_size=2, num_workers=workers, prefetch_factor=prefetch):
        assert settle()
        batches = workers * prefetch + 1
        assert int(rows.read) == 2 * batches
        assert shared_memory_bytes() - before == batches * 2 * ROW * 4
        break


def test_shared_memory_is_given_back_as_batches_are_dropped():
    rows, before = fresh()
    for _batch in DataLoader(rows, batch_size=2, num_workers=1):
        pass
    del _batch
    assert shared_memory_bytes() == before


def test_only_what_this_process_and_its_children_hold_is_counted():
    before = shared_memory_bytes()
    mine = torch.zeros(ROW).share_memory_()
    assert shared_memory_bytes() - before == mine.nbytes
    pid = os.fork()
    if pid == 0:  # a child of its own session still is a child
        kept = torch.zeros(ROW).share_memory_()
        time.sleep(30 if kept is not None else 0)
        os._exit(0)
    try:
        deadline = time.monotonic() + 10
        while shared_memory_bytes() - before < 2 * mine.nbytes and time.monotonic() < deadline:
            time.sleep(0.01)
        assert shared_memory_bytes() - before == 2 * mine.nbytes
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert shared_memory_bytes() - before == mine.nbytes


def test_settle_waits_for_a_worker_that_sleeps_if_asked_to():
    rows = Rows(seconds=0.05)
    for _batch in DataLoader(rows, batch_size=1, num_workers=1, prefetch_factor=4):
        assert settle(lambda: int(rows.read), still=0.5)
        assert int(rows.read) == 5
        break


def test_settle_does_not_wait_forever_for_a_busy_thread():
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(stop.is_set, True)])
    thread.start()
    try:
        assert not settle(timeout=0.3)
    finally:
        stop.set()
        thread.join()
    assert settle()


def test_settle_waits_while_progress_is_made():
    ticks = iter(range(10**9))
    assert not settle(lambda: next(ticks), timeout=0.1)
