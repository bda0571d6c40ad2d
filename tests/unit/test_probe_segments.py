"""The segments probe against PyTorch's own constants, its own reader of snapshots, and cases worked by hand."""

import re
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.cuda import _memory_viz

from breakfix.probes import segments
from breakfix.probes.segments import MIB, Event, ExpandableSegments, Segments, Trace, live_bytes, replay

KINDS = (Segments, ExpandableSegments)


def constants_of_torch():
    """Name to value, from the header that PyTorch is built from."""
    header = Path(torch.__file__).parent / "include/c10/core/AllocatorConfig.h"
    if not header.exists() or "kSmallBuffer" not in header.read_text():
        pytest.skip("this torch keeps its constants elsewhere")
    return {name: int(value) for name, value in re.findall(r"constexpr size_t (\w+) = (\d+);", header.read_text())}


def test_the_constants_are_those_of_torch():
    """What the header has, the model has; 20 MiB is not in it."""
    found = constants_of_torch()
    assert found["kMinBlockSize"] == segments.ROUND
    assert found["kSmallSize"] == segments.SMALL
    assert found["kSmallBuffer"] == segments.SMALL_SEGMENT
    assert found["kMinLargeAlloc"] == segments.OWN_SEGMENT
    assert found["kRoundLarge"] == segments.ROUND_SEGMENT


def packed(*sizes, **options):
    card = Segments(**options)
    for key, size in enumerate(sizes):
        card.allocate(key, size)
    return card


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),  # the rest of 2 MiB less 512 bytes is cut off: more than 1 MiB
        (13 * MIB, 14 * MIB, 14 * MIB),  # a rest of 1 MiB is not
        (19 * MIB + 512, 20 * MIB, 20 * MIB),
    ],
)
def test_one_request(size, allocated, reserved):
    """Rounding, the choice of a segment, and what is cut off, as the source says."""
    card = packed(size)
    assert (card.allocated, card.reserved) == (allocated, reserved)


def test_the_smallest_free_block_that_fits_is_taken():
    card = packed(6 * MIB, 2 * MIB, 3 * MIB, 2 * MIB)  # one segment of 20 MiB, 7 of them left
    card.free(0)
    card.free(2)
    card.allocate(9, 3 * MIB)
    first = next(card.segments[0].blocks())
    assert (first.key, first.size) == (None, 6 * MIB)  # the hole of 3 MiB was smaller
    assert card.reserved == 20 * MIB


def test_neighbours_join_and_a_used_block_keeps_its_segment():
    card = packed(5 * MIB, 5 * MIB, 5 * MIB, 5 * MIB)
    for key in (0, 1, 3):
        card.free(key)
    assert [b.size // MIB for b in card.segments[0].blocks()] == [10, 5, 5]
    card.empty_cache()
    assert (card.reserved, card.inactive_split) == (20 * MIB, 15 * MIB)
    card.free(2)
    card.empty_cache()
    assert (card.reserved, card.segments) == (0, [])


def test_a_tensor_that_grows_fits_no_hole_that_it_left():
    """Each of 12, 14, ... 30 MiB needs a segment of its own: 210 MiB for a live 30."""
    card = Segments()
    for i, size in enumerate(range(12, 32, 2)):
        card.allocate(i, size * MIB)
        if i:
            card.free(i - 1)
    assert card.reserved == sum(range(12, 32, 2)) * MIB
    capped = Segments(capacity=60 * MIB)
    for i, size in enumerate(range(12, 32, 2)):
        capped.allocate(i, size * MIB)
        if i:
            capped.free(i - 1)
    assert capped.retries > 0  # what is whole goes back, again and again
    assert capped.reserved <= 60 * MIB


@pytest.mark.parametrize("kind", KINDS)
def test_what_lives_long_between_temporaries_keeps_its_surroundings(kind):
    """Twenty times 15 MiB that die beside 5 MiB that stay: 300 MiB are free afterwards, and 100 are refused.

    By hand: the first 15 MiB get 16 of their own, then each 5 a segment of 20, whose rest serves the next 15.
    """
    card = kind(capacity=480 * MIB)
    for i in range(20):
        card.allocate(2 * i, 15 * MIB)
        card.allocate(2 * i + 1, 5 * MIB)
    assert card.reserved == (416 if kind is Segments else 400) * MIB
    for i in range(20):
        card.free(2 * i)
    card.empty_cache()
    assert (card.allocated, card.reserved, card.inactive_split) == (100 * MIB, 400 * MIB, 300 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        card.allocate(99, 100 * MIB)


def test_expandable_segments_join_what_separate_segments_cannot():
    """Growing by pages: the next larger tensor takes the place of the last one and some pages more."""
    card = ExpandableSegments()
    for i, size in enumerate(range(12, 32, 2)):
        if i:
            card.free(i - 1)
        card.allocate(i, size * MIB)
    assert card.reserved == 40 * MIB


def test_expandable_segments_keep_a_page_of_which_a_part_is_used():
    card = ExpandableSegments(capacity=60 * MIB)
    for key in range(12):
        card.allocate(key, 5 * MIB)  # four to a page
    for key in range(12):
        if key % 4:
            card.free(key)
    with pytest.raises(torch.OutOfMemoryError):
        card.allocate(99, 20 * MIB)  # 45 MiB are free, in three pieces of 15
    assert (card.allocated, card.reserved, card.inactive_split) == (15 * MIB, 60 * MIB, 45 * MIB)


requests = st.lists(st.tuples(st.integers(1, 24 * MIB), st.integers(0, 6)), min_size=1, max_size=40)


@pytest.mark.parametrize("kind", KINDS)
@given(requests=requests, capacity=st.sampled_from([None, 64 * MIB]))
@settings(max_examples=40, deadline=None)
def test_nothing_overlaps_and_nothing_is_lost(kind, requests, capacity):
    """After any requests: blocks tile their segments, no two free ones touch, and the sums are right."""
    card, alive = kind(capacity), []
    for key, (size, victim) in enumerate(requests):
        try:
            card.allocate(key, size)
            alive.append(key)
        except torch.OutOfMemoryError:
            assert capacity is not None
        if victim < len(alive):
            card.free(alive.pop(victim))
        if size % 7 == 0:
            card.empty_cache()
        _consistent(card, capacity)
    assert _memory_viz.segsum(card.snapshot())  # PyTorch's own reader adds it all up and asserts


def _consistent(card, capacity):
    mapped = used = 0
    for segment in card.segments:
        at, last_free = 0, False
        for block in segment.blocks():
            assert block.start == at
            assert block.size > 0
            at += block.size
            free = block.key is None and block.mapped
            assert not (free and last_free)
            last_free = free
            mapped += block.size * block.mapped
            used += block.size * (block.key is not None)
        assert at == segment.size
    assert (mapped, used) == (card.reserved, card.allocated)
    free = sum(size for pool in card._free.values() for size, _, _ in pool)
    assert free == card.reserved - card.allocated
    assert capacity is None or card.reserved <= capacity


def test_a_trace_sees_what_is_made_and_when_it_dies():
    """Real tensors: sizes are exact, views are no allocation, and a death comes before the next birth."""
    with Trace("cpu") as trace:
        a = torch.zeros(1000)
        b = a.view(10, 100)[2:]
        c = a + 1
        del a, b
        d = torch.zeros(7)
        trace.mark()
    kinds = [(event.key, event.nbytes) for event in trace.events]
    assert kinds == [(0, 4000), (1, 4000), (0, 0), (2, 28)]
    assert live_bytes(trace.events) == [4000, 8000, 4000, 4028]
    del c, d


def test_what_was_there_before_counts_when_it_is_added():
    model = nn.Linear(8, 8)
    with Trace("cpu") as trace:
        trace.add(model)
    assert live_bytes(trace.events)[-1] == 4 * (64 + 8)


def test_a_trace_keeps_nothing_alive():
    with Trace("cpu") as trace:
        a = torch.zeros(1000)
        died = weakref.ref(a)
        del a
        assert died() is None
        trace.mark()
    assert live_bytes(trace.events)[-1] == 0


def test_a_replay_stops_where_the_card_refuses():
    events = [Event(0, 30 * MIB), Event(1, 30 * MIB), Event(0, 0)]
    card = replay(events, capacity=40 * MIB)
    assert card.refused
    assert (card.retries, card.allocated) == (1, 30 * MIB)
    assert not replay(events).refused
