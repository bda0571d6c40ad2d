"""Ranks return what they computed together; whatever goes wrong in one is raised outside, once, with its own lines."""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._dynamo  # which run_ranks imports before the first fork, and which makes a cache folder
import torch.distributed as dist

from breakfix.contract import Contract
from breakfix.ranks import RankFailed, run_ranks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked, which is safe on Linux only")


def children():
    return Path("/proc/self/task").joinpath(str(os.getpid()), "children").read_text().split()


@pytest.fixture(autouse=True)
def _nothing_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = children(), os.listdir("/proc/self/fd")
    yield
    assert (children(), os.listdir("/proc/self/fd")) == before
    assert not list(tmp_path.iterdir())


def failure_of(work, world=2, timeout_s=20.0):
    with pytest.raises(RankFailed) as caught:
        run_ranks(work, world, timeout_s=timeout_s)
    return caught.value


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_compute_together(world):
    """Each rank's result comes back in its place, whatever was summed over all of them included."""

    def work(rank, world):
        total = torch.tensor([float(rank)])
        dist.all_reduce(total)
        return {"rank": rank, "world": world, "total": total}

    results = run_ranks(work, world)
    assert [r["rank"] for r in results] == list(range(world))
    assert all(r["world"] == world and r["total"] == sum(range(world)) for r in results)


def test_the_first_failure_is_the_one_that_is_raised():
    """Rank 0 fails because rank 1 has gone; what is raised is rank 1's error, with the line that raised it."""

    def work(rank, world):
        dist.barrier()
        if rank == 1:
            raise ValueError("of rank one")
        dist.all_reduce(torch.ones(3))
        return {}

    error = failure_of(work)
    assert (error.rank, error.kind, str(error)) == (1, "ValueError", "rank 1: ValueError: of rank one")
    assert error.frames[-1].filename == __file__
    assert "raise ValueError" in error.frames[-1].line
    assert "raise ValueError" in str(error.__cause__)


def test_a_breach_of_contract_stays_one():
    """A Contract error raised in a rank is raised as one."""

    def work(rank, world):
        raise Contract("wrap must return a module")

    with pytest.raises(Contract, match="wrap must return a module"):
        run_ranks(work, 2)


def test_a_rank_that_dies_is_named():
    """A rank that ends without a word is named, beside the error that it caused in another."""

    def work(rank, world):
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(3))
        return {}

    assert "rank 1: ended before it had returned" in str(failure_of(work))


def test_a_missing_partner_is_told_with_the_line():
    """A collective that one rank never issues ends at the timeout, at the line that waited."""

    def work(rank, world):
        if rank == 0:
            dist.all_reduce(torch.ones(3))
        return {}

    started = time.monotonic()
    error = failure_of(work, timeout_s=1.0)
    assert time.monotonic() - started < 10
    assert any("dist.all_reduce" in (f.line or "") and f.filename == __file__ for f in error.frames)


def test_results_are_no_pickles():
    """What a rank returns is numbers, strings, lists and arrays, or an error."""
    assert "TypeError" in str(failure_of(lambda rank, world: {"model": torch.nn.Linear(1, 1)}))
    [result] = run_ranks(lambda rank, world: {"nan": float("nan"), "ids": [1, 2], "x": np.arange(3)}, 1)
    assert np.isnan(result["nan"])
    assert result["ids"] == [1, 2]
    assert result["x"].tolist() == [0, 1, 2]


def test_a_used_gpu_refuses_the_fork(monkeypatch):
    """Once CUDA is up in this process, forked ranks would hang: say so instead."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="fresh"):
        run_ranks(lambda rank, world: {}, 2)
