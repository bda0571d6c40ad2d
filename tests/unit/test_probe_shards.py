"""The probe for sharded ranks: known shards, a known gather, and simulated ranks beside real ones."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from breakfix.probes import shards, traffic
from breakfix.probes.memory import Card
from breakfix.ranks import run_ranks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked, which is safe on Linux only")

WIDTH, BLOCKS = 64, 4
P = 4 * BLOCKS * WIDTH * WIDTH  # bytes of parameters; each matrix a multiple of 512, so that rounding adds nothing


def blocks():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BLOCKS)))


def one_step(card, build):
    """What `build(model)` returns does one step of Adam; what is kept, by kind, and the peak, in P."""
    model = blocks()
    card.add(model)
    module, optimizer = build(model)
    del model
    module(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    card.end_step()
    held = card.held if isinstance(card, shards.RankCard) else {"all": card.in_use}
    return {"peak": card.peak.bytes / P, **{kind: size / P for kind, size in held.items()}}


def replicated(model):
    return DistributedDataParallel(model, gradient_as_bucket_view=True), torch.optim.Adam(model.parameters())


def zero_1(model):
    module = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return module, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)


def per_block(model):
    for block in model:
        fully_shard(block)
    return fully_shard(model), torch.optim.Adam(model.parameters())


def at_the_root(model):
    return fully_shard(model), torch.optim.Adam(model.parameters())


WAYS = {f.__name__: f for f in (replicated, zero_1, per_block, at_the_root)}
KEPT = {  # parameters, gradients, optimizer state, in P, for N ranks
    "replicated": lambda n: (1, 1, 2),
    "zero_1": lambda n: (1, 1, 2 / n),
    "per_block": lambda n: (1 / n, 1 / n, 2 / n),
    "at_the_root": lambda n: (1 / n, 1 / n, 2 / n),
}


def measured(build, world):
    def work(rank, world):
        with shards.RankCard("cpu") as card:
            return one_step(card, build)

    return run_ranks(work, world, timeout_s=60)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world", [2, 4])
def test_kept_bytes_are_the_shares(way, world):
    """Parameters, gradients and state of each rank are the share that arithmetic says."""
    for rank in measured(WAYS[way], world):
        found = [rank[kind] for kind in ("parameters", "gradients", "optimizer state")]
        assert found == pytest.approx(KEPT[way](world), abs=0.15 / BLOCKS)  # Adam's counts, 512 bytes for each tensor


def test_what_is_gathered_counts_at_the_peak_only():
    """Sharding at the root gathers the model and its gradient, two P more than sharding by block: both are seen."""
    by_block, at_root = (measured(way, 2)[0]["peak"] for way in (per_block, at_the_root))
    assert at_root - by_block > 0.5
    assert by_block < 3.0


def test_a_plain_card_takes_what_was_let_go_for_held():
    """Why there is a RankCard: a Card never learns that a gathered block was emptied in place."""

    def work(rank, world):
        with Card("cpu") as plain:
            return one_step(plain, per_block)

    true = sum(KEPT["per_block"](2))
    for rank, seen in zip(run_ranks(work, 2, timeout_s=60), measured(per_block, 2), strict=True):
        assert sum(size for kind, size in seen.items() if kind != "peak") == pytest.approx(true, abs=0.1)
        assert rank["all"] > true + 0.5


def test_resizing_is_followed_and_the_wrapper_taken_off():
    original = torch.UntypedStorage.resize_
    with shards.RankCard("cpu") as card:
        x = torch.zeros(1024)
        x.untyped_storage().resize_(0)
        assert card.in_use == 0
        x.untyped_storage().resize_(8192)
        assert card.in_use == 8192
    assert torch.UntypedStorage.resize_ is original


@pytest.mark.parametrize("way", WAYS)
def test_a_simulated_rank_holds_and_sends_what_a_real_one_does(way):
    """Rank 0 of two that are simulated keeps the bytes and issues the collectives of rank 0 of two that are there.

    Its peak may be lower: gloo makes a whole all-reduce of a reduce-scatter, in a buffer that a card sees.
    """
    counted = traffic.count({"cpu": "gloo"})

    def real(rank, world):
        with shards.RankCard("cpu") as card:
            return {"held": one_step(card, WAYS[way]), "log": [[c.op, c.bytes, c.dtype] for c in counted]}

    def alone(rank, world):
        dist.destroy_process_group()
        with shards.simulated(2) as log, shards.RankCard("cpu") as card:
            return {"held": one_step(card, WAYS[way]), "log": [[c.op, c.bytes, c.dtype] for c in log]}

    there = run_ranks(real, 2, backend=traffic.BACKEND, timeout_s=60)[0]
    shards.simulate()
    [simulated] = run_ranks(alone, 1, backend=shards.SIMULATED, timeout_s=60)
    assert simulated["held"].pop("peak") <= there["held"].pop("peak")
    assert simulated == there


def test_shares_fall_with_the_number_of_simulated_ranks():
    def work(rank, world):
        dist.destroy_process_group()
        found = {}
        for many in (8, 64):
            with shards.simulated(many), shards.RankCard("cpu") as card:
                found[str(many)] = one_step(card, per_block)["parameters"]
        return found

    shards.simulate()
    [found] = run_ranks(work, 1, backend=shards.SIMULATED, timeout_s=60)
    assert found["8"] == pytest.approx(1 / 8)
    assert found["64"] == pytest.approx(BLOCKS * 512 / P), "a row of 256 bytes each, rounded up to 512"
