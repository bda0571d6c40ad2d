"""The collectives probe against PyTorch's Flight Recorder, and on ranks that part in every way that is known."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

from breakfix.probes import collectives
from breakfix.probes.collectives import Call, Parting, first_parting
from breakfix.ranks import RankFailed, run_ranks

forks = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked, which is safe on Linux only")


def traced(run, world=2, wait_s=30.0):
    """What each rank called, where it says that the ranks parted, what it raised, and what PyTorch recorded."""
    trace = collectives.trace({"cpu": "gloo"}, wait_s)

    def work(rank, world):
        raised = ""
        try:
            with trace:
                run(rank, world)
        except RuntimeError as error:
            raised = type(error).__name__
        return {
            "calls": [str(call) for call in trace.calls],
            "parted": list(trace.parted.said) if trace.parted else [],
            "raised": raised,
            "agrees": trace.calls == collectives.recorded(),
        }

    return run_ranks(work, world, backend=collectives.BACKEND, timeout_s=60)


def wrapped():
    return nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))


def everything(rank, world):
    module = wrapped()
    for _ in range(3):
        module(torch.randn(4, 4)).sum().backward()
    dist.all_reduce(torch.ones(3), group=dist.new_group())
    dist.all_gather([torch.ones(2, 3) for _ in range(world)], torch.ones(2, 3))
    dist.all_gather_object([None] * world, {"rank": rank})
    dist.barrier()


@forks
def test_a_trace_is_what_the_flight_recorder_saw():
    """Op, dtype, shape, group, number and line of every collective, DDP's own from C++ included."""
    for rank in traced(everything):
        assert rank["agrees"], rank["calls"]
        assert not rank["parted"]
        assert not rank["raised"]


@forks
def test_a_call_names_the_line_of_the_script():
    here = traced(everything)[0]["calls"]
    assert all("test_probe_collectives.py:" in call for call in here)
    assert [call.rpartition(" in ")[2] for call in here[:2]] == ["wrapped", "wrapped"]


def another_op(rank, world):
    dist.all_reduce(torch.ones(7)) if rank == 0 else dist.broadcast(torch.ones(7), 0)


def another_shape(rank, world):
    dist.all_reduce(torch.ones(7 + rank))


def another_dtype(rank, world):
    dist.all_reduce(torch.ones(7, dtype=torch.float32 if rank == 0 else torch.float64))


def one_more(rank, world):
    for _ in range(3 - rank):
        dist.all_reduce(torch.ones(7))


def rank_0_alone(rank, world):
    if rank == 0:
        dist.barrier()


def in_a_second_group(rank, world):
    group = dist.new_group()
    dist.all_reduce(torch.ones(7))
    if rank == 1:
        dist.all_reduce(torch.ones(7), group=group)


def inside_backward(rank, world):
    module = wrapped()
    loss = module(torch.randn(4, 4)).sum()
    loss.backward() if rank == 0 else dist.all_reduce(torch.ones(5))


def in_evaluation(rank, world):
    module = wrapped().eval()
    if rank == 0:
        with torch.no_grad():
            module(torch.randn(4, 4))


PARTINGS = {
    another_op: ("all_reduce float32 [7]", "broadcast float32 [7]"),
    another_shape: ("all_reduce float32 [7]", "all_reduce float32 [8]"),
    another_dtype: ("all_reduce float32 [7]", "all_reduce float64 [7]"),
    one_more: ("all_reduce float32 [7]", "ended"),
    rank_0_alone: ("barrier", "ended"),
    in_a_second_group: ("ended", "all_reduce float32 [7]"),
    inside_backward: ("all_reduce float32 [28]", "all_reduce float32 [5]"),
    in_evaluation: ("broadcast float32 [8]", "ended"),
}


@forks
@pytest.mark.parametrize("run", PARTINGS, ids=lambda run: run.__name__)
def test_ranks_that_part_are_told_where(run):
    """Every rank hears the same, and whoever would have waited gets an exception instead."""
    ranks = traced(run)
    for rank, found in enumerate(ranks):
        assert [said.partition(", ")[0] for said in found["parted"]] == list(PARTINGS[run])
        assert found["raised"] == ("" if PARTINGS[run][rank] == "ended" else "RanksPart")


@forks
def test_nobody_waits_after_ranks_have_parted():
    """A script that catches the exception and goes on gets it again, at once."""

    def run(rank, world):
        for _ in range(3 * (1 - rank)):
            with pytest.raises(collectives.RanksPart):
                dist.all_reduce(torch.ones(1))

    assert [len(rank["calls"]) for rank in traced(run)] == [1, 0]


@forks
def test_the_others_hear_what_a_rank_raised():
    """The rank that failed is the one that is reported; the others do not wait for it."""

    def run(rank, world):
        if rank == 1:
            raise KeyError("rank 1's own")
        dist.all_reduce(torch.ones(1))

    with pytest.raises(RankFailed) as failed:
        traced(run)
    assert (failed.value.rank, failed.value.kind) == (1, "KeyError")


@forks
def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_said():
    """Two ranks that wait for each other in different groups: neither is told what the other does, both are let go."""

    def run(rank, world):
        group = dist.new_group()
        dist.all_reduce(torch.ones(1), group=group if rank == 0 else None)

    for rank in traced(run, wait_s=0.5):
        assert collectives.MISSING in rank["parted"]
        assert rank["raised"] == "RanksPart"


@forks
def test_three_ranks_and_a_group_of_two():
    """Who is no member of a group need not call in it."""

    def run(rank, world):
        group = dist.new_group([0, 2])
        if rank != 1:
            dist.all_reduce(torch.ones(2), group=group)
        dist.all_reduce(torch.ones(1))

    assert [rank["parted"] for rank in traced(run, world=3)] == [[], [], []]


def call(op="all_reduce", shape=(3,), group="0", number=1, dtype="float32"):
    return Call(op, 12, dtype, (shape,), group, number, f"train.py:{number} in train")


def test_first_parting_of_traces():
    same = [call(number=n) for n in (1, 2)]
    assert first_parting([same, same]) is None
    assert first_parting([[], []]) is None
    found = first_parting([[*same, call(shape=(4,), number=3)], [*same, call(number=3)]])
    assert found == Parting(
        "0", 3, ("all_reduce float32 [4], train.py:3 in train", "all_reduce float32 [3], train.py:3 in train")
    )
    assert str(found).splitlines()[:2] == [
        "collective 3 of group 0",
        "  rank 0: all_reduce float32 [4], train.py:3 in train",
    ]
    assert first_parting([same, same[:1]]).said[1] == "ended"
    assert first_parting([same, []]).number == 1, "in the default group every rank is a member"
    assert first_parting([[call(group="1")], []]) is None
    assert first_parting([[call("scatter", (3,))], [call("scatter", ())]]) is None, "only the root puts something in"
