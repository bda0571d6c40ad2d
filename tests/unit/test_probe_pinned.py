"""Pinned memory: the model against PyTorch's own allocator, what is pinned against arithmetic, and how it is moved."""

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from breakfix.probes import _torch
from breakfix.probes.loader import settle
from breakfix.probes.pinned import FakePinning, HostPool, TransferLog, watch_pinned

MIB = 2**20
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
# What happens to a pool: ("take", bytes), ("give back", which of the taken ones), ("empty cache", 0)
traces = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 1 << 22)),
        st.tuples(st.just("give back"), st.integers(0, 100)),
        st.tuples(st.just("empty cache"), st.just(0)),
    ),
    max_size=60,
)


# ------------------------------------------------------------------------------------------------------- the model


@given(st.integers(1, 1 << 50))
def test_a_block_is_the_next_power_of_two(nbytes):
    size, _ = HostPool().take(nbytes)
    assert size & (size - 1) == 0
    assert size / 2 < nbytes <= size


@given(traces)
def test_what_is_held_is_what_is_used_and_what_is_free(trace):
    pool = HostPool()
    for _ in replayed(trace, pool.take, lambda block: pool.give_back(*block), pool.empty_cache):
        assert pool.held == pool.used + sum(size * len(blocks) for size, blocks in pool.free.items())
        assert pool.held_peak >= pool.held


@given(traces)
def test_nothing_is_returned_before_the_cache_is_emptied(trace):
    pool, before = HostPool(), 0
    trace = [step for step in trace if step[0] != "empty cache"]
    for _ in replayed(trace, pool.take, lambda block: pool.give_back(*block), pool.empty_cache):
        assert pool.held >= before
        before = pool.held
    assert pool.held == pool.held_peak


@given(traces)
def test_starting_over_keeps_what_is_in_use_and_counts_from_there(trace):
    pool = HostPool()
    for _ in replayed(trace, pool.take, lambda block: pool.give_back(*block), pool.empty_cache):
        pass
    pool.start_over()
    assert pool.held == pool.held_peak == pool.used
    assert pool.allocations == 0
    assert not pool.free


def test_a_free_block_serves_its_own_size_only():
    pool = HostPool()
    pool.give_back(*pool.take(64 * MIB))
    pool.take(33 * MIB)
    assert pool.held == 64 * MIB, "33 MiB round up to the block that is there"
    pool.give_back(*pool.take(1 * MIB))
    pool.take(17 * MIB)
    assert pool.held == (64 + 1 + 32) * MIB, "nothing is split, nothing joined"


def test_nine_batches_of_65_mib_take_1152_mib():
    pool = HostPool()
    for _ in range(9):
        pool.take(65 * MIB)
    assert pool.held == 1152 * MIB


@pytest.fixture(scope="module")
def pytorchs_own(tmp_path_factory):
    """The allocator template that torch ships as a header, compiled over malloc."""
    compiler, root = shutil.which("g++"), Path(torch.__file__).parent
    if compiler is None or not (root / "include/ATen/core/CachingHostAllocator.h").is_file():
        pytest.skip("needs g++ and the headers of torch")
    library = tmp_path_factory.mktemp("host_pool") / "host_pool.so"
    source = Path(__file__).with_name("host_pool.cpp")
    options = ["-std=c++20", "-w", "-shared", "-fPIC", f"-I{root}/include", f"-L{root}/lib", "-lc10"]
    subprocess.run([compiler, str(source), "-o", str(library), *options], check=True)
    found = ctypes.CDLL(str(library))
    for name in ("new", "take"):
        getattr(found, f"pool_{name}").restype = ctypes.c_void_p
    for name in ("held", "held_peak", "used", "allocations"):
        getattr(found, f"pool_{name}").restype = ctypes.c_size_t
    return found


@given(traces)
@settings(deadline=None, max_examples=200)
def test_the_model_is_pytorchs_own_allocator_byte_for_byte(pytorchs_own, trace):
    pool, own = HostPool(), pytorchs_own
    it = ctypes.c_void_p(own.pool_new())
    steps = replayed(
        trace,
        lambda n: (pool.take(n), ctypes.c_void_p(own.pool_take(it, ctypes.c_size_t(n)))),
        lambda both: (pool.give_back(*both[0]), own.pool_give_back(it, both[1])),
        lambda: (pool.empty_cache(), own.pool_empty_cache(it)),
    )
    for _ in steps:
        for name in ("held", "held_peak", "used", "allocations"):
            assert getattr(pool, name) == getattr(own, f"pool_{name}")(it), name


REPLAY = """
import ctypes, sys, torch
own = ctypes.CDLL(sys.argv[1])
own.pool_new.restype = own.pool_take.restype = ctypes.c_void_p
pool = ctypes.c_void_p(own.pool_new())
for thickness in 1, 2, 4:
    sizes = [-(-length // thickness) * 16384 for length in range(33, 65)]
    for _ in range(3):
        blocks = [own.pool_take(pool, ctypes.c_size_t(size)) for size in sizes]
        [own.pool_give_back(pool, ctypes.c_void_p(block)) for block in blocks]
print(own.pool_held_peak(pool) >> 10, own.pool_held(pool) >> 10, own.pool_allocations(pool))
"""


@pytest.mark.parametrize(
    ("setting", "peak_kib", "held_kib", "allocations"),
    [
        ("", 32 * 1792, 32 * 1792, 3 * 32),  # 1024 + 512 + 256 KiB for each of 32 scans
        ("pinned_max_cached_size_mb:0", 16 * sum(range(33, 65)), 0, 9 * 32),
    ],
)
def test_settings_of_the_allocator(pytorchs_own, setting, peak_kib, held_kib, allocations):
    if setting and torch.__version__ < "2.14":
        pytest.skip("the allocator has this setting from 2.14 on")
    command = [sys.executable, "-c", REPLAY, pytorchs_own._name]
    environment = os.environ | {"PYTORCH_ALLOC_CONF": setting}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert list(map(int, found)) == [peak_kib, held_kib, allocations]


def replayed(trace, take, give_back, empty_cache):
    """Do what the trace says, one step at a time."""
    taken = []
    for action, number in trace:
        if action == "take":
            taken.append(take(number))
        elif action == "give back" and taken:
            give_back(taken.pop(number % len(taken)))
        elif action == "empty cache":
            empty_cache()
        yield


# ------------------------------------------------------------------------------------------------- what is pinned


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool])
def test_a_pinned_tensor_has_the_same_values_and_says_so(dtype):
    x = torch.arange(24).view(2, 3, 4).to(dtype)
    with FakePinning():
        y = x.pin_memory()
        assert y.is_pinned()
        assert not x.is_pinned()
        assert y.dtype == dtype
        assert torch.equal(y, x)
        assert y[0].is_pinned()
        assert y.pin_memory() is y
        assert not y.clone().is_pinned()


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), max_size=3))
def test_bytes_are_those_that_torch_needs_for_these_strides(dimensions):
    sizes, strides = [size for size, _ in dimensions], [stride for _, stride in dimensions]
    x = torch.arange(100.0).as_strided(sizes, strides)
    with FakePinning() as pinning:
        y = x.pin_memory() if strides and all(strides) else x.contiguous().pin_memory()
        wanted = torch.empty_strided(y.size(), y.stride()).untyped_storage().nbytes()
        assert pinning.live == wanted
        assert torch.equal(y, x)


def test_a_block_is_free_when_the_last_view_of_it_is_gone():
    with FakePinning() as pinning:
        x = torch.ones(1000).pin_memory()
        view = x.view(10, 100)[3].detach()
        del x
        assert (pinning.live, pinning.held) == (4000, 4096)
        del view
        assert (pinning.live, pinning.held, pinning.pool.used) == (0, 4096, 0)
        torch.ones(600).pin_memory()
        assert pinning.allocations == 1, "2400 bytes round up to the block that is there"


def test_factories_pin_too_and_nothing_is_charged_for_nothing():
    with FakePinning() as pinning:
        kept = [
            torch.empty(3, pin_memory=True),
            torch.zeros(3, pin_memory=True),
            torch.tensor([1.0], pin_memory=True),
            torch.ones(2).new_full((3,), 7.0, pin_memory=True),
        ]
        assert all(t.is_pinned() for t in kept)
        assert kept[-1].tolist() == [7.0] * 3
        assert pinning.live == 4 * (3 + 3 + 1 + 3)
        assert torch.empty(0).pin_memory().numel() == 0
        assert pinning.pins == 4


def test_holds_in_threads_that_are_started_meanwhile():
    with FakePinning() as pinning:
        with ThreadPoolExecutor(1, "reader") as pool:
            assert pool.submit(lambda: torch.ones(3).pin_memory().is_pinned()).result()
        assert pinning.threads == {"reader_0": 1}


def test_leaves_torch_as_it_was_even_after_an_error():
    before = [threading.Thread.start, vars(torch.accelerator).copy(), torch._C._host_emptyCache]
    with pytest.raises(ZeroDivisionError), FakePinning(), TransferLog("cpu"):
        raise ZeroDivisionError
    assert before == [threading.Thread.start, vars(torch.accelerator).copy(), torch._C._host_emptyCache]
    assert not torch.ones(1).is_pinned()


def test_what_is_free_is_returned_by_the_names_that_torch_has_for_it():
    with FakePinning() as pinning:
        kept = torch.ones(256).pin_memory()
        torch.ones(2048).pin_memory()
        assert pinning.held == 1024 + 8192
        getattr(torch.accelerator, "empty_host_cache", torch._C._host_emptyCache)()
        assert pinning.held == 1024 == kept.nbytes
        torch.cuda.empty_cache()
        assert pinning.held == 1024, "the card's cache is another"


def test_what_is_kept_from_an_earlier_watch_is_pinned_in_the_next_one_too():
    with FakePinning() as first:
        kept = torch.ones(250).pin_memory()
        torch.ones(2000).pin_memory()
        assert (first.live, first.held, first.allocations) == (1000, 1024 + 8192, 2)
    assert not kept.is_pinned()
    with FakePinning() as second, TransferLog("cpu") as log:
        assert (second.live, second.live_peak, second.held, second.held_peak) == (1000, 1000, 1024, 1024)
        assert (second.pins, second.allocations, dict(second.threads)) == (0, 0, {})
        assert kept.is_pinned()
        assert kept.pin_memory() is kept
        torch.empty(250).copy_(kept, non_blocking=True)
        assert log.asynchronous_bytes == 1000
        del kept
        torch.ones(200).pin_memory()
        assert (second.live, second.held, second.held_peak, second.allocations) == (0, 1024, 1024, 0)


def test_what_dies_between_two_watches_is_given_back():
    with FakePinning():
        kept = torch.ones(250).pin_memory()
    del kept
    with FakePinning() as pinning:
        assert (pinning.live, pinning.held) == (0, 0)


def test_the_memory_is_really_there_until_it_is_given_back():
    resident = Path("/proc/self/statm")
    if not resident.exists():
        pytest.skip("needs /proc")
    pages = lambda: int(resident.read_text().split()[1])  # noqa: E731
    with FakePinning() as pinning:
        before = pages()
        small = torch.zeros(33 * MIB, dtype=torch.uint8)[: 33 * MIB].pin_memory()
        grown = (pages() - before) * 4096
        assert pinning.held == 64 * MIB
        assert small.nbytes == 33 * MIB
        assert grown >= 64 * MIB, "locked pages are resident, used or not"
        with_it = pages()
        del small
        _torch.empty_host_cache()
        assert (with_it - pages()) * 4096 >= 64 * MIB


# ---------------------------------------------------------------------------------------------- a real DataLoader


class Rows(Dataset):
    """40 rows, row i of 1000 + i float32."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((1000 + i,), float(i)), i


def lists(samples):
    rows, ids = zip(*samples, strict=True)
    return list(rows), list(ids)


def own_batch(samples):
    return OwnBatch(*lists(samples))


class OwnBatch:
    """A batch class that pins itself, as DataLoader's documentation shows."""

    def __init__(self, rows, ids):
        self.rows, self.ids = rows, ids

    def pin_memory(self):
        self.rows = [row.pin_memory() for row in self.rows]
        return self


def pinning_in_the_worker(samples):
    return [row.pin_memory() for row, _ in samples]


def batches(pinning: FakePinning, **options):
    """The loader's batches, each when the loader has come to rest."""
    loader = DataLoader(Rows(), batch_size=4, pin_memory=True, **options)
    for batch in loader:
        assert settle(lambda: pinning.pins)
        yield batch


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 3), (2, 1), (2, 2), (2, 8)])
def test_workers_times_prefetch_batches_wait_pinned_and_one_is_in_hand(workers, prefetch):
    with FakePinning() as pinning:
        iterator = batches(pinning, collate_fn=lists, num_workers=workers, prefetch_factor=prefetch)
        _rows, ids = next(iterator)
        rows_pinned = min(4 * (workers * prefetch + 1), 40)
        assert ids == [0, 1, 2, 3]
        assert pinning.pins == rows_pinned
        assert pinning.live == sum(4 * (1000 + i) for i in range(rows_pinned))
        assert pinning.held == sum(4096 if i <= 24 else 8192 for i in range(rows_pinned)), (
            "1024 float32 fill 4096 bytes"
        )


def test_all_pinning_is_done_by_one_thread_of_this_process_and_none_before_the_first_batch():
    with FakePinning() as pinning:
        iterator = batches(pinning, collate_fn=lists, num_workers=2)
        assert pinning.held == 0
        rows, _ = next(iterator)
        assert all(row.is_pinned() for row in rows)
        assert len(pinning.threads) == 1
        assert "_pin_memory_loop" in next(iter(pinning.threads))


def test_without_workers_the_caller_pins():
    with FakePinning() as pinning:
        for _batch in batches(pinning, collate_fn=lists, num_workers=0):
            break
        assert pinning.threads == {threading.main_thread().name: 4}


def test_a_batch_class_pins_itself():
    with FakePinning() as pinning:
        iterator = batches(pinning, collate_fn=own_batch, num_workers=1)
        batch = next(iterator)
        assert all(row.is_pinned() for row in batch.rows)
        assert pinning.pins == 4 * (1 * 2 + 1)


def test_a_forked_worker_cannot_pin():
    loader = DataLoader(
        Rows(), batch_size=4, collate_fn=pinning_in_the_worker, num_workers=1, multiprocessing_context="fork"
    )
    with FakePinning(), pytest.raises(RuntimeError):
        next(iter(loader))


def test_a_second_epoch_in_the_same_order_takes_nothing_more():
    with FakePinning() as pinning:
        held = []
        for _ in range(2):
            for _batch in batches(pinning, collate_fn=lists, num_workers=2, prefetch_factor=2):
                del _batch
            held.append(pinning.held)
        assert held[0] == held[1]
        assert pinning.live == 0


# ------------------------------------------------------------------------------------------------ how it is moved


def moved(move) -> TransferLog:
    """What the log says of `move(x, pinned)`; both hold 8 float32."""
    x = torch.arange(8.0)
    with FakePinning(), TransferLog("cpu") as log:
        move(x, x.pin_memory())
    return log


@pytest.mark.parametrize(
    ("move", "bytes_moved", "without_waiting"),
    [
        (lambda x, pinned: pinned.to("cpu", non_blocking=True), 32, 32),
        (lambda x, pinned: pinned.to(torch.device("cpu"), torch.float16, True), 32, 32),
        (lambda x, pinned: pinned.to(device="cpu", non_blocking=True), 32, 32),
        (lambda x, pinned: pinned.to(torch.ones(1), True), 32, 32),
        (lambda x, pinned: pinned[2:5].to("cpu", non_blocking=True), 12, 12),
        (lambda x, pinned: pinned.view(2, 4).t().to("cpu", non_blocking=True), 32, 32),
        (lambda x, pinned: pinned[::2].to("cpu", non_blocking=True), 16, 0),  # has gaps
        (lambda x, pinned: pinned.to("cpu"), 32, 0),
        (lambda x, pinned: x.to("cpu", non_blocking=True), 32, 0),
        (lambda x, pinned: torch.empty(8).copy_(pinned, non_blocking=True), 32, 32),
        (lambda x, pinned: torch.empty(8).copy_(pinned, True), 32, 32),
        (lambda x, pinned: torch.empty(8).copy_(pinned), 32, 0),
        (lambda x, pinned: pinned.copy_(x), 0, 0),  # filling a staging buffer
        (lambda x, pinned: pinned.to(torch.float64), 0, 0),
        (lambda x, pinned: pinned.clone(), 0, 0),
    ],
)
def test_a_copy_to_the_card_is_recorded(move, bytes_moved, without_waiting):
    log = moved(move)
    assert (log.bytes, log.asynchronous_bytes) == (bytes_moved, without_waiting)


def test_what_is_on_the_card_already_is_not_moved_again():
    def twice(x, pinned):
        rows = pinned.view(2, 4).to("cpu", non_blocking=True).split(1)
        torch.stack([row.to("cpu", torch.float64) for row in rows]).to("cpu")

    assert [t.nbytes for t in moved(twice).transfers] == [32]


def test_a_copy_to_the_card_is_a_copy():
    def changed_later(x, pinned):
        on_card = pinned.to("cpu", non_blocking=True)
        pinned.zero_()
        assert on_card.tolist() == x.tolist()

    moved(changed_later)


# --------------------------------------------------------------------------------------------------------- with CUDA


def test_watching_says_where_its_figures_are_from():
    with watch_pinned("cpu") as pinned:
        torch.ones(1024, pin_memory=True)
        assert (pinned.source, pinned.held_peak, pinned.allocations) == ("modelled", 4096, 1)


@needs_cuda
def test_the_model_predicts_what_the_card_s_allocator_holds():
    pool = HostPool()
    with watch_pinned("cuda") as pinned:
        assert pinned.source == "measured"
        kept = [torch.empty(n, dtype=torch.uint8, pin_memory=True) for n in (1, 1000, 5 * MIB, 5 * MIB)]
        for tensor in kept:
            pool.take(tensor.nbytes)
        assert (pinned.held, pinned.allocations) == (pool.held, pool.allocations)
        kept.clear()
        assert pinned.held == pool.held


@needs_cuda
def test_a_real_copy_to_the_card_is_recorded():
    with TransferLog() as log:
        torch.ones(8, pin_memory=True).to("cuda", non_blocking=True)
        torch.ones(4).cuda(non_blocking=True)
    assert (log.bytes, log.asynchronous_bytes) == (48, 32)
