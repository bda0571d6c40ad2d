"""A loader watched: counts, states, bytes and waiting, each against what is known beforehand."""

import os
import random
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from breakfix.probes.loader import Waits, calls, fingerprint, private_bytes, reads, settle, shared_memory_bytes

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


# ------------------------------------------------------------------------------------------- who reads what, how often


class Drawing(Dataset):
    """Twelve samples, each with a draw from the generator at hand."""

    def __init__(self, draw=lambda: 0.0, **attributes: object):
        self.draw = draw
        self.__dict__ |= attributes

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> float:
        return float(self.draw())


class Stream(IterableDataset):
    """Six numbers from every worker, or each worker's own part of them."""

    def __init__(self, shared_out: bool):
        self.shared_out = shared_out

    def __iter__(self):
        info = get_worker_info()
        step, start = (info.num_workers, info.id) if info and self.shared_out else (1, 0)
        yield from (torch.full((2,), float(i)) for i in range(start, 6, step))


def run(loader) -> None:
    for _batch in loader:
        pass


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_each_read_is_counted_once_whoever_reads(workers):
    dataset = Drawing()
    with reads(dataset) as seen:
        run(DataLoader(dataset, batch_size=2, sampler=[0, 1, 2, 3, 3, 3], num_workers=workers))
        found = seen.take()
    assert found.keys == {0: 1, 1: 1, 2: 1, 3: 3}
    assert (found.count, found.again, len(found.workers)) == (6, 2, workers)
    assert found.by_trainer == (0 if workers else 6)
    assert sum(found.processes.values()) == 6


@pytest.mark.parametrize(("lasting", "new", "in_all"), [(False, [2, 2, 2], 6), (True, [2, 0, 0], 2)])
def test_workers_that_start_are_told_from_those_that_last(lasting, new, in_all):
    dataset = Drawing()
    loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=lasting)
    with reads(dataset) as seen:
        found = []
        for _epoch in range(3):
            run(loader)
            found.append(len(seen.take().new_workers))
    assert found == new
    assert len(seen.total.workers) == in_all


def test_other_datasets_of_the_class_are_not_counted_and_the_class_is_left_as_it_was():
    before, mine, other = Drawing.__getitem__, Drawing(), Drawing()
    with reads(mine) as seen:
        mine[0], other[0], other[1]
        assert seen.take().count == 1
    assert Drawing.__getitem__ is before


@pytest.mark.parametrize(
    ("name", "owned"),
    [
        ("own", lambda: np.random.default_rng(1)),
        ("own", lambda: np.random.RandomState(1)),
        ("own", lambda: random.Random(1)),
    ],
)
def test_workers_that_draw_from_copies_of_one_generator_are_found(name, owned):
    own = owned()
    dataset = Drawing(own.random if hasattr(own, "random") else own.random_sample, own=own)
    with reads(dataset) as seen:
        for _epoch in range(2):
            run(DataLoader(dataset, batch_size=2, num_workers=2))
            found = seen.take()
            assert (found.states[name].total(), len(found.states[name])) == (12, 6)
    assert len(seen.total.states[name]) == 6


def test_a_generator_inside_a_transform_has_a_path():
    own = torch.Generator().manual_seed(1)
    dataset = Drawing(lambda: torch.rand((), generator=own), steps=[{"crop": Drawing(own=own)}])
    with reads(dataset) as seen:
        dataset[0], dataset[1]
    assert {name: len(states) for name, states in seen.take().states.items()} == {"steps.0.crop.own": 2}


@pytest.mark.parametrize(
    ("name", "draw"),
    [("torch", lambda: torch.rand(())), ("numpy.random", np.random.rand), ("random", random.random)],
)
def test_the_global_generators_are_set_anew_in_every_worker(name, draw):
    dataset = Drawing(draw)
    with reads(dataset) as seen:
        for _epoch in range(2):
            run(DataLoader(dataset, batch_size=2, num_workers=2))
        found = seen.take().states
    assert list(found) == [name]
    assert (found[name].total(), len(found[name])) == (24, 24)


@pytest.mark.parametrize(("shared_out", "again"), [(False, 6), (True, 0)])
def test_samples_that_every_worker_brings_are_found(shared_out, again):
    dataset = Stream(shared_out)
    with reads(dataset) as seen:
        run(DataLoader(dataset, batch_size=2, num_workers=2))
    assert seen.take().again == again
    assert seen.take().count == 0


def test_calls_of_any_function_are_counted_by_what_they_were_given():
    module = SimpleNamespace(decode=lambda data: data * 2)
    dataset = Drawing(lambda: module.decode(torch.ones(3)).sum())
    with calls(module, "decode") as every, calls(module, "decode", key=len) as by_length:
        run(DataLoader(dataset, batch_size=2, num_workers=2))
        module.decode(torch.zeros(3))
        found = every.take()
        assert (found.count, len(found.keys), found.again) == (13, 2, 11)
        assert by_length.take().keys == {3: 13}
    module.decode(torch.zeros(3))
    assert len(every.total.workers) == 2


def test_fingerprints_are_equal_for_equal_values_only():
    some = [torch.arange(6), np.arange(6), b"abc", "abc", 3, (1, torch.ones(2)), torch.tensor(2.0), None]
    same = [torch.arange(6), np.arange(6), b"abc", "abc", 3, (1, torch.ones(2)), torch.tensor(2.0), None]
    other = [torch.arange(1, 7), np.arange(1, 7), b"abd", "abd", 4, (1, torch.zeros(2)), torch.tensor(3.0), 0]
    assert [fingerprint(v) for v in some] == [fingerprint(v) for v in same]
    assert fingerprint(np.int64(3)) == 3
    assert not any(fingerprint(a) == fingerprint(b) for a, b in zip(some, other, strict=True))


def test_the_share_of_waiting_by_a_known_clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def loader(seconds):
        for _ in range(4):
            now[0] += seconds
            yield

    waits = Waits()
    for waiting, training, share in (3, 1, 0.75), (1, 3, 0.25), (0, 1, 0.0):
        for _ in waits(loader(waiting)):
            now[0] += training
        assert waits.share == share
    assert waits.seconds == [16, 16, 4]


def test_private_memory_of_a_child_is_what_it_has_written():
    shared = np.ones(32 << 20, dtype=np.uint8)
    found = {}
    for what in "reads", "writes":
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            shared.sum() if what == "reads" else shared.fill(2)
            os.write(theirs, b".")
            time.sleep(30)
            os._exit(0)
        try:
            os.read(ours, 1)
            found[what] = private_bytes()[pid] / 2**20
        finally:
            os.kill(pid, 9), os.waitpid(pid, 0), os.close(ours), os.close(theirs)
    assert 31 <= found["writes"] - found["reads"] <= 33
