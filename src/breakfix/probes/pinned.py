"""Pinned host memory: what a loader pins, what PyTorch keeps of it, and how the batches reach the card.

    with watch_pinned() as pinned, TransferLog() as log:
        for batch in loader:
            ...
    print(pinned.held_peak, pinned.source)              # bytes; "measured" with CUDA, "modelled" without
    print(log.asynchronous_bytes / log.bytes)

Pinned memory is host memory: `torch.cuda.memory_allocated` counts the card's and sees none of it. With CUDA the figures
are PyTorch's own, `torch.cuda.host_memory_stats`. Without, `FakePinning` lets the real loader and its real pin thread
run: every pinned tensor then lives in a block of a `HostPool`, which follows the rule of PyTorch's allocator and really
holds the memory. What the pool holds is a model; which tensors are pinned, when, and how large they are is not.
"""

import mmap
import os
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from breakfix.probes import _torch

# -------------------------------------------------------------------------------------------------- what is held


class HostPool:
    """The rule of PyTorch's caching host allocator, modelled; sizes in bytes.

    A request is rounded up to a power of two. A block that was given back serves requests of its own size only: it is
    never split, never joined, and never returned to the system before `empty_cache`.
    """

    def __init__(self, new_block: Callable[[int], Any] = lambda size: None):
        self.new_block = new_block  # makes the memory of a block, where there is to be some
        self.free = defaultdict(list)  # size: the blocks of that size that nobody uses
        self.held = self.held_peak = self.used = self.allocations = 0

    def take(self, nbytes: int) -> tuple[int, Any]:
        """A block for `nbytes` (at least 1): its size, and what `new_block` made of it."""
        size = 1 << (nbytes - 1).bit_length()
        if not self.free[size]:
            self.free[size].append(self.new_block(size))
            self.allocations += 1
            self.held += size
            self.held_peak = max(self.held_peak, self.held)
        self.used += size
        return size, self.free[size].pop()

    def give_back(self, size: int, block: Any) -> None:
        """The block is no longer used; the pool keeps it."""
        self.used -= size
        self.free[size].append(block)

    def empty_cache(self) -> None:
        """Return the blocks that nobody uses to the system."""
        self.held = self.used
        self.free.clear()

    def start_over(self) -> None:
        """Empty the cache and count from here on: what is in use stays, and is the peak so far."""
        self.empty_cache()
        self.held_peak, self.allocations = self.held, 0


class HostStats:
    """What PyTorch's own host allocator says, in bytes, from an empty cache on. Needs CUDA."""

    source = "measured"

    def __init__(self):
        torch.cuda.init()
        _torch.empty_host_cache()
        torch.cuda.reset_peak_host_memory_stats()
        self._earlier = self._read("num_host_alloc")

    @property
    def held(self) -> int:
        """Pinned bytes that the process holds, used or cached."""
        return self._read("allocated_bytes.current")

    @property
    def held_peak(self) -> int:
        """The most that `held` has been since then."""
        return self._read("allocated_bytes.peak")

    @property
    def allocations(self) -> int:
        """How often it had to ask the system for a block since then."""
        return self._read("num_host_alloc") - self._earlier

    def _read(self, key: str) -> int:
        return torch.cuda.host_memory_stats().get(key, 0)


@contextmanager
def watch_pinned(device: torch.device | str | None = None) -> Iterator["HostStats | FakePinning"]:
    """Watch pinned memory from an empty cache on: `held`, `held_peak`, `allocations`, and `source`.

    For a CUDA device PyTorch's own counters ("measured"), else a `FakePinning` ("modelled"); default: what is there.
    """
    if torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type == "cuda":
        yield HostStats()
    else:
        with FakePinning() as pinning:
            yield pinning


# ------------------------------------------------------------------------------------------ pinning without a card


class _EveryThread(TorchFunctionMode):
    """A function mode that holds in the threads started meanwhile too, and steps aside in forked workers."""

    def __enter__(self):
        self.process, self.stack = os.getpid(), ExitStack()
        start = threading.Thread.start
        self.stack.enter_context(_replaced(threading.Thread, "start", lambda thread: start(self._inside(thread))))
        return super().__enter__()

    def __exit__(self, *exception):
        self.process = None  # a thread that is still running has left the mode as well
        self.stack.close()
        return super().__exit__(*exception)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.process != os.getpid():
            return func(*args, **(kwargs or {}))
        return self.call(func, args, dict(kwargs or {}))

    def call(self, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _inside(self, thread: threading.Thread) -> threading.Thread:
        run = thread.run

        def run_inside() -> None:
            TorchFunctionMode.__enter__(self)
            try:
                run()
            finally:
                TorchFunctionMode.__exit__(self, None, None, None)
                vars(thread).pop("run", None)  # else it holds itself, and the pool, until the next collection

        thread.run = run_inside
        return thread


def _new_block(size: int) -> np.ndarray:
    """Memory of its own, as a driver maps it: it goes back to the system at once, and a fork does not copy it."""
    block = np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8)
    block[:: mmap.PAGESIZE] = 1  # locked pages are resident pages
    return block


# PyTorch has one pool per process, and a pinned tensor may be kept from one watch to the next: so one for all of them.
_POOL = HostPool(_new_block)
_ALIVE: dict[int, int] = {}  # the address of each pinned tensor's memory, and its bytes
_LOCK = threading.RLock()  # a tensor may die in any thread, also in one that is just pinning


class FakePinning(_EveryThread):
    """Let pinning run on a machine without an accelerator, into the blocks of a `HostPool`; use as a context manager.

    `DataLoader(pin_memory=True)` starts its real pin thread, `Tensor.pin_memory()` and `pin_memory=True` give tensors
    that say `is_pinned()`. A forked worker can't pin, as it can't with CUDA. Tensors that were pinned in an earlier
    watch and are kept are pinned in this one too; free blocks are given back when it begins. Sizes in bytes.
    """

    source = "modelled"

    def __init__(self):
        self.pool = _POOL
        self.pins = self.live_peak = 0  # tensors pinned so far; the most that `live` has been
        self.threads: Counter[str] = Counter()  # tensors pinned, by the name of the thread that did it

    @property
    def live(self) -> int:
        """Bytes of the pinned tensors that are alive."""
        return sum(_ALIVE.values())

    @property
    def held(self) -> int:
        """Bytes that the pool holds, used or cached."""
        return self.pool.held

    @property
    def held_peak(self) -> int:
        """The most that `held` has been."""
        return self.pool.held_peak

    @property
    def allocations(self) -> int:
        """How often the pool had to make a block."""
        return self.pool.allocations

    def __enter__(self):
        super().__enter__()
        for name, pretended in self._pretended().items():
            if hasattr(torch.accelerator, name):
                self.stack.enter_context(_replaced(torch.accelerator, name, pretended))
        self.stack.enter_context(_torch.host_cache_emptied_by(_empty_cache))
        with _LOCK:
            self.pool.start_over()
            self.live_peak = self.live
        return self

    def call(self, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        if func is Tensor.is_pinned:
            return self.is_pinned(args[0])
        if func is Tensor.pin_memory:
            return self.pin(args[0])
        if kwargs.pop("pin_memory", False):  # torch.empty(..., pin_memory=True) and its like
            return self.pin(func(*args, **kwargs))
        return func(*args, **kwargs)

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether the memory of `tensor` is a block of the pool."""
        return tensor.untyped_storage().data_ptr() in _ALIVE

    def pin(self, tensor: Tensor) -> Tensor:
        """A copy of `tensor` in a block of the pool; `tensor` itself where it is pinned already, or empty."""
        if self.is_pinned(tensor) or tensor.numel() == 0:
            return tensor
        memory = self._take(_span(tensor) * tensor.element_size())
        pinned = torch.from_numpy(memory).view(tensor.dtype).as_strided(tensor.size(), tensor.stride())
        return pinned.copy_(tensor)

    def _take(self, nbytes: int) -> np.ndarray:
        """`nbytes` of a block: an array that gives the block back when the last tensor over it has died."""
        with _LOCK:
            size, block = self.pool.take(nbytes)
            memory = np.frombuffer(block, dtype=np.uint8, count=nbytes)
            _ALIVE[memory.ctypes.data] = nbytes
            self.live_peak = max(self.live_peak, self.live)
            self.pins += 1
            self.threads[threading.current_thread().name] += 1
        weakref.finalize(memory, _give_back, size, block).atexit = False
        return memory

    def _pretended(self) -> dict[str, Callable]:
        """What `torch.accelerator` is to say; not that of 2.11 has all of it."""
        return {
            "is_available": lambda: True,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "current_device_index": lambda: 0,
            "set_device_index": lambda device: None,
            "empty_host_cache": _empty_cache,
        }


def _give_back(size: int, block: np.ndarray) -> None:
    with _LOCK:
        del _ALIVE[block.ctypes.data]
        _POOL.give_back(size, block)


def _empty_cache() -> None:
    with _LOCK:
        _POOL.empty_cache()


def _span(tensor: Tensor) -> int:
    """Elements from the first to the last of `tensor` in memory: what a copy with its strides needs."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


# ---------------------------------------------------------------------------------------------- how it reaches the card


@dataclass(frozen=True)
class Transfer:
    """One copy from the host to the card. Only all three together let the host go on while it runs."""

    nbytes: int
    pinned: bool
    non_blocking: bool
    dense: bool  # without gaps; else PyTorch first gathers it in ordinary memory

    @property
    def asynchronous(self) -> bool:
        return self.pinned and self.non_blocking and self.dense


class TransferLog(_EveryThread):
    """Record every copy from the host to `card` that Python code asks for; use as a context manager.

    Without CUDA the CPU stands in for the card: then `.to("cpu")` really copies, and so does copying from pinned memory
    into a tensor that is not pinned. What came from such a copy, and what is computed from it, is on the card.
    """

    def __init__(self, card: torch.device | str | None = None):
        self.card = torch.device(card or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.stands_in = self.card.type == "cpu"
        self.transfers: list[Transfer] = []

    @property
    def bytes(self) -> int:
        """Bytes copied to the card."""
        return sum(t.nbytes for t in self.transfers)

    @property
    def asynchronous_bytes(self) -> int:
        """Of these, the bytes whose copy did not hold up the host."""
        return sum(t.nbytes for t in self.transfers if t.asynchronous)

    def call(self, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        if func in (Tensor.to, Tensor.cuda) and not self._on_card(args[0]):
            return self._moved(func, args, kwargs)
        if func is Tensor.copy_:
            return self._filled(func, args, kwargs)
        result = func(*args, **kwargs)
        if self.stands_in and any(map(self._on_card, _tensors([*args, *kwargs.values()]))):
            _put_on_card(result)
        return result

    def _moved(self, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """`tensor.to(...)`, `tensor.cuda(...)` of a tensor on the host."""
        source, result = args[0], func(*args, **kwargs)
        if func is Tensor.cuda or _device_type(args[1:], kwargs) == self.card.type:
            self._record(source, _non_blocking(args[1:], kwargs))
            if self.stands_in:
                same = result.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
                result = _put_on_card(result.clone() if same else result)
        return result

    def _filled(self, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """`target.copy_(source, ...)`."""
        target, source = args[0], args[1]
        if not self._on_card(source) and (self._on_card(target) or (self.stands_in and _leaves_pinned(source, target))):
            self._record(source, _non_blocking(args[2:], kwargs))
            if self.stands_in:
                _put_on_card(target)
        return func(*args, **kwargs)

    def _record(self, source: Tensor, non_blocking: bool) -> None:
        nbytes = source.numel() * source.element_size()
        self.transfers.append(Transfer(nbytes, source.is_pinned(), non_blocking, _is_dense(source)))

    def _on_card(self, tensor: Tensor) -> bool:
        return getattr(tensor, "_on_card", False) if self.stands_in else tensor.device.type == self.card.type


def _put_on_card(value: Any) -> Any:
    for tensor in _tensors(value):
        tensor._on_card = True
    return value


def _leaves_pinned(source: Tensor, target: Tensor) -> bool:
    return source.is_pinned() and not target.is_pinned()


def _is_dense(tensor: Tensor) -> bool:
    """Without gaps in memory, in whatever order: only then is it copied as it is."""
    return tensor.numel() == 0 or _span(tensor) == tensor.numel()


def _device_type(args: tuple, kwargs: dict[str, Any]) -> str | None:
    """The type of the device that the arguments of `Tensor.to` name, if any."""
    device = kwargs.get("device", kwargs.get("other", args[0] if args else None))
    if isinstance(device, Tensor):
        device = device.device
    return torch.device(device).type if isinstance(device, torch.device | str | int) else None


def _non_blocking(args: tuple, kwargs: dict[str, Any]) -> bool:
    """The argument of that name: the first boolean of `to`, `cuda` and `copy_`."""
    return bool(kwargs.get("non_blocking", next((a for a in args if isinstance(a, bool)), False)))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
