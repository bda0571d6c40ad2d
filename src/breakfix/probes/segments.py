"""Why a card is full though little of it is used: the allocations of a program, and how PyTorch's allocator packs them.

    with Trace("cuda") as trace:             # "cpu" works too: the allocations are real, only the packing is modelled
        answer(model, request)
    packed = replay(trace.events, capacity=2 * 2**30)
    print(packed.report())                   # bytes in use, bytes reserved, retries, what was refused

A `Trace` is measured: every storage that an operator makes, in order, and when it dies. `Segments` is a model of the
caching allocator of `torch.cuda` with its default settings, on one stream. It rounds requests to 512 bytes, takes the
smallest free block that fits, cuts blocks from segments of 2 MiB, 20 MiB or more, and gives a segment back to the card
only when nothing in it is used. It has been compared with the constants and the description in PyTorch's source, and
with cases worked by hand, not with a GPU yet. On CUDA `measured` gives PyTorch's own figures beside it.
"""

import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from breakfix.probes import _torch

MIB = 2**20
# As in PyTorch's AllocatorConfig.h and CUDAAllocatorConfig.h, in bytes.
ROUND, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB  # every size; the largest request of the small pool; its segments
LARGE_SEGMENT, OWN_SEGMENT, ROUND_SEGMENT = 20 * MIB, 10 * MIB, 2 * MIB  # from 10 MiB on a segment of its own

# -------------------------------------------------------------------------------------------- what a program asks for


@dataclass(frozen=True, slots=True)
class Event:
    """Storage number `key` was made by `op` with so many bytes; or it died, with none; or the cache was emptied."""

    key: int
    nbytes: int
    op: str = ""


class Trace(_torch.dispatch_mode()):
    """Records the storages that operators make on one type of device, and their deaths, in order; a context manager.

    Not seen: workspaces inside a kernel, other threads than yours and backward's, and what was there before, until you
    `add` it. Compiled functions run eagerly.
    """

    def __init__(self, device: str | torch.device):
        super().__init__()
        self.device = torch.device(device).type
        self.events: list[Event] = []
        self._numbers, self._dead = {}, deque()  # by id of the live storage: its number, size and reference
        self._next = 0

    def add(self, *things: nn.Module | Tensor) -> None:
        """Record what was made before."""
        for thing in things:
            tensors = [*thing.parameters(), *thing.buffers()] if isinstance(thing, nn.Module) else [thing]
            self._record("add", tensors)

    def mark(self) -> int:
        """How many events there are by now: slices of `events` between two marks are a phase."""
        self._bury()
        return len(self.events)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(wrapper, "__tensor_flatten__") for wrapper in types):
            return NotImplemented  # it unwraps itself first; then its plain tensors come by
        out = func(*args, **(kwargs or {}))
        self._record(func.name(), out)
        return out

    def _record(self, op: str, out) -> None:
        self._bury()
        for storage in self._storages(out):
            known = self._numbers.get(id(storage))
            if storage.nbytes() and (known is None or known[1] != storage.nbytes()):
                if known is not None:  # resized in place: a new block, then the old one is given back
                    self.events.append(Event(known[0], 0))
                self._book(storage, op)

    def _book(self, storage: torch.UntypedStorage, op: str) -> None:
        key, dead = id(storage), self._dead
        reference = weakref.ref(storage, lambda _: dead.append(key))  # one atomic append: it may die on any thread
        self._numbers[key] = (self._next, storage.nbytes(), reference)
        self.events.append(Event(self._next, storage.nbytes(), op))
        self._next += 1

    def _bury(self) -> None:
        while self._dead:
            number, _, _ = self._numbers.pop(self._dead.popleft(), (None, 0, None))
            if number is not None:
                self.events.append(Event(number, 0))

    def _storages(self, out) -> Iterator[torch.UntypedStorage]:
        if isinstance(out, list | tuple):
            for item in out:
                yield from self._storages(item)
        elif isinstance(out, Tensor) and out.device.type == self.device and out.layout is torch.strided:
            yield out.untyped_storage()


def live_bytes(events: Iterable[Event]) -> list[int]:
    """Bytes alive after each event, unrounded: what a perfect allocator would hold."""
    sizes, live, total = {}, [], 0
    for event in events:
        total += event.nbytes - (0 if event.nbytes else sizes.pop(event.key, 0))
        if event.nbytes:
            sizes[event.key] = event.nbytes
        live.append(total)
    return live


# ------------------------------------------------------------------------------------------- how an allocator packs it


@dataclass(eq=False, slots=True)
class Block:
    """A part of a segment: free, or holding the storage number `key`."""

    segment: "Segment"
    start: int  # bytes from the start of the segment
    size: int
    key: int | None = None
    requested: int = 0
    previous: "Block | None" = None
    next: "Block | None" = None
    mapped: bool = True  # False for a hole: addresses with no memory behind them


@dataclass(eq=False, slots=True)
class Segment:
    """Memory that the allocator got from the card in one piece."""

    address: int
    size: int
    small: bool
    first: Block = field(init=False)

    def __post_init__(self):
        self.first = Block(self, 0, self.size)

    def blocks(self) -> Iterator[Block]:
        block = self.first
        while block is not None:
            yield block
            block = block.next

    @property
    def empty(self) -> bool:
        return self.first.key is None and self.first.next is None


class Segments:
    """A model of `torch.cuda`'s caching allocator; all figures in bytes. `capacity` is what the card has for it."""

    source = "modelled"
    least_large_rest = SMALL  # what is cut off a large block is more than this

    def __init__(self, capacity: int | None = None):
        self.capacity = capacity
        self.segments: list[Segment] = []
        self.reserved = self.reserved_peak = self.allocated = self.allocated_peak = 0
        self.retries = 0  # how often it had to give cached segments back before it could go on
        self.refused = ""  # what the card could not give, in words
        self.timeline: list[tuple[int, int]] = []  # allocated and reserved after each request
        self._held: dict[int, Block] = {}
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}  # by pool: size, address, block
        self._next_address = 0

    @property
    def inactive_split(self) -> int:
        """Free bytes in segments of which another part is used: `empty_cache` cannot give them back."""
        return sum(size for pool in self._free.values() for size, _, block in pool if not block.segment.empty)

    def allocate(self, key: int, nbytes: int) -> None:
        """A block for storage number `key`. Raises torch.OutOfMemoryError where the card has no room."""
        size = max(ROUND, -(-nbytes // ROUND) * ROUND)
        block = self._smallest_free(size) or self._new(size)
        if block is None:
            self.retries += 1
            self.empty_cache()
            block = self._new(size)
        if block is None:
            self.refused = self._refusal(nbytes)
            raise torch.OutOfMemoryError(self.refused)
        self._split(block, size)
        block.key, block.requested = key, nbytes
        self._held[key] = block
        self.allocated += block.size
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        self.timeline.append((self.allocated, self.reserved))

    def free(self, key: int) -> None:
        """The storage has died: its block joins free neighbours and stays reserved."""
        block = self._held.pop(key)
        self.allocated -= block.size
        block.key, block.requested = None, 0
        if _is_free(block.next):
            block = self._join(block, block.next)
        if _is_free(block.previous):
            block = self._join(block.previous, block)
        self._offer(block)

    def empty_cache(self) -> None:
        """Give the card the segments in which nothing is used: all that `torch.cuda.empty_cache` can do."""
        for segment in [s for s in self.segments if s.empty]:
            self._withdraw(segment.first)
            self.segments.remove(segment)
            self.reserved -= segment.size

    def snapshot(self) -> dict:
        """The segments in the form of `torch.cuda.memory._snapshot()`, for `torch.cuda._memory_viz`."""
        return {"segments": [_described(segment) for segment in self.segments], "device_traces": []}

    def report(self) -> str:
        """The figures that an out-of-memory message has, and where the free bytes are."""
        lines = [
            f"{self.allocated / MIB:.1f} MiB allocated, {self.reserved / MIB:.1f} MiB reserved ({self.source}); "
            f"at most {self.allocated_peak / MIB:.1f} and {self.reserved_peak / MIB:.1f}",
            f"{self.inactive_split / MIB:.1f} MiB free in segments that are partly used; {self.retries} retries",
        ]
        return "\n".join(lines + [self.refused] * bool(self.refused))

    def _smallest_free(self, size: int) -> Block | None:
        pool = self._free[size <= SMALL]
        at = bisect_left(pool, (size, -1), key=lambda entry: entry[:2])
        return pool.pop(at)[2] if at < len(pool) else None

    def _new(self, size: int) -> Block | None:
        """The one block of a new segment; None where the card is too full."""
        room = SMALL_SEGMENT if size <= SMALL else LARGE_SEGMENT
        if size >= OWN_SEGMENT:
            room = -(-size // ROUND_SEGMENT) * ROUND_SEGMENT
        if self.capacity is not None and self.reserved + room > self.capacity:
            return None
        segment = Segment(self._next_address, room, size <= SMALL)
        self._next_address += room
        self.segments.append(segment)
        self.reserved += room
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        return segment.first

    def _split(self, block: Block, size: int) -> None:
        """Cut what is not needed off the block, unless that is too little to be worth it."""
        left = block.size - size
        if left >= ROUND if block.segment.small else left > self.least_large_rest:
            self._offer(self._cut(block, size))

    def _cut(self, block: Block, size: int) -> Block:
        """What is behind the first `size` bytes of the block, as a block of its own."""
        rest = Block(block.segment, block.start + size, block.size - size, previous=block, next=block.next)
        if rest.next is not None:
            rest.next.previous = rest
        rest.mapped, block.size, block.next = block.mapped, size, rest
        return rest

    def _join(self, left: Block, right: Block) -> Block:
        for block in (left, right):
            self._withdraw(block)
        left.size += right.size
        left.next = right.next
        if left.next is not None:
            left.next.previous = left
        return left

    def _offer(self, block: Block) -> None:
        address = block.segment.address + block.start
        insort(self._free[block.segment.small], (block.size, address, block), key=lambda entry: entry[:2])

    def _withdraw(self, block: Block) -> None:
        """Take a block from the free ones, if it is among them."""
        pool, wanted = self._free[block.segment.small], (block.size, block.segment.address + block.start)
        at = bisect_left(pool, wanted, key=lambda entry: entry[:2])
        if at < len(pool) and pool[at][2] is block:
            del pool[at]

    def _refusal(self, nbytes: int) -> str:
        free = self.capacity - self.reserved
        return (
            f"modelled card of {self.capacity / MIB:.1f} MiB out of memory: tried to allocate {nbytes / MIB:.2f} MiB "
            f"with {free / MIB:.1f} MiB free, {self.allocated / MIB:.1f} MiB allocated and "
            f"{(self.reserved - self.allocated) / MIB:.1f} MiB reserved but unallocated"
        )


class ExpandableSegments(Segments):
    """The same with `expandable_segments:True`: one segment per pool, which grows and shrinks by pages.

    Pages are 2 MiB for small requests and 20 MiB for large ones. A page goes back only when nothing in it is used; the
    hole that it leaves is filled first when the segment has to grow. Less is known of this part than of the rest.
    """

    least_large_rest = ROUND - 1
    VIRTUAL = 2**50 - 2**50 % LARGE_SEGMENT

    @property
    def inactive_split(self) -> int:
        """Free bytes in pages of which another part is used."""
        return sum(size - self._pages_in(b)[1] for pool in self._free.values() for size, _, b in pool)

    def empty_cache(self) -> None:
        """Give the card every page in which nothing is used."""
        for block in [b for pool in self._free.values() for _, _, b in pool]:
            start, size = self._pages_in(block)
            if size:
                self._unmap(block, start, size)
                self.reserved -= size

    def _pages_in(self, block: Block) -> tuple[int, int]:
        """Start and size of the whole pages inside a block."""
        page = SMALL_SEGMENT if block.segment.small else LARGE_SEGMENT
        start, end = -(-block.start // page) * page, (block.start + block.size) // page * page
        return start, max(0, end - start)

    def _unmap(self, block: Block, start: int, size: int) -> None:
        """Make a hole of some pages of a free block; what is before and behind stays free."""
        self._withdraw(block)
        hole = block
        if start > block.start:
            hole = self._cut(block, start - block.start)
            self._offer(block)
        if hole.size > size:
            self._offer(self._cut(hole, size))
        hole.mapped = False
        if hole.next is not None and not hole.next.mapped:
            self._join(hole, hole.next)
        if hole.previous is not None and not hole.previous.mapped:
            self._join(hole.previous, hole)

    def _new(self, size: int) -> Block | None:
        """A free block at the lowest place where mapping pages makes one; None where the card is too full."""
        small = size <= SMALL
        page = SMALL_SEGMENT if small else LARGE_SEGMENT
        for hole in self._holes(small):
            before = hole.previous if _is_free(hole.previous) else None
            behind = hole.next if _is_free(hole.next) else None
            there = before.size if before else 0
            if there + hole.size + (behind.size if behind else 0) < size:
                continue
            room = min(-(-(size - there) // page) * page, hole.size)
            if self.capacity is not None and self.reserved + room > self.capacity:
                return None
            return self._map(hole, room, before, behind)
        return None

    def _holes(self, small: bool) -> list[Block]:
        segment = next((s for s in self.segments if s.small == small), None)
        if segment is None:
            segment = Segment(0 if small else 2 * self.VIRTUAL, self.VIRTUAL, small)
            segment.first.mapped = False
            self.segments.append(segment)
        return [block for block in segment.blocks() if not block.mapped]

    def _map(self, hole: Block, room: int, before: Block | None, behind: Block | None) -> Block:
        """Put memory behind the first `room` bytes of a hole and join them with what is free beside them."""
        if hole.size > room:
            self._cut(hole, room)
            behind = None
        hole.mapped = True
        self.reserved += room
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        if behind is not None:
            self._join(hole, behind)
        return hole if before is None else self._join(before, hole)


def _is_free(block: Block | None) -> bool:
    return block is not None and block.key is None and block.mapped


def _described(segment: Segment) -> dict:
    blocks = [
        {
            "address": segment.address + block.start,
            "size": block.size,
            "requested_size": block.requested,
            "state": "inactive" if block.key is None else "active_allocated",
            "frames": [],
        }
        for block in segment.blocks()
        if block.mapped
    ]
    used = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
    kind = "small" if segment.small else "large"
    total = sum(b["size"] for b in blocks)
    figures = {"total_size": total, "allocated_size": used, "active_size": used, "stream": 0, "device": 0}
    return {"address": segment.address, "segment_type": kind, "frames": [], "blocks": blocks, **figures}


def replay(events: Iterable[Event], capacity: int | None = None, expandable: bool = False) -> Segments:
    """Pack a trace, up to where the card refuses."""
    packed = ExpandableSegments(capacity) if expandable else Segments(capacity)
    for event in events:
        if event.op == "empty_cache":
            packed.empty_cache()
        elif not event.nbytes:
            packed.free(event.key)
        else:
            try:
                packed.allocate(event.key, event.nbytes)
            except torch.OutOfMemoryError:
                break
    return packed


def measured(device: torch.device | str = "cuda") -> dict[str, int]:
    """PyTorch's own figures of the same names since the last reset of its peaks, in bytes. Needs CUDA."""
    stats = torch.cuda.memory_stats(device)
    names = {
        "allocated_peak": "allocated_bytes.all.peak",
        "reserved": "reserved_bytes.all.current",
        "reserved_peak": "reserved_bytes.all.peak",
        "inactive_split": "inactive_split_bytes.all.current",
        "retries": "num_alloc_retries",
    }
    return {name: stats.get(key, 0) for name, key in names.items()}
