"""The traffic probe against two independent sources: PyTorch's Flight Recorder, and the kernel's loopback counters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from breakfix.probes import traffic
from breakfix.probes.traffic import Collective
from breakfix.ranks import run_ranks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked, which is safe on Linux only")


def counted(run, world=2):
    """What `run(rank, world)` put on the wire according to both sources, per rank."""
    log = traffic.count({"cpu": "gloo"})

    def work(rank, world):
        with traffic.recording() as recorded:
            run(rank, world)
        return {
            "counted": [[c.op, c.bytes, c.dtype] for c in log],
            "recorded": [[c.op, c.bytes, c.dtype] for c in recorded],
        }

    ranks = run_ranks(work, world, backend=traffic.BACKEND, timeout_s=30)
    return [{source: [Collective(*c) for c in found] for source, found in rank.items()} for rank in ranks]


OPS = {
    "all_reduce": lambda r, w: dist.all_reduce(torch.ones(100)),
    "all_reduce in bfloat16": lambda r, w: dist.all_reduce(torch.ones(100, dtype=torch.bfloat16)),
    "all_reduce, not waited for at once": lambda r, w: dist.all_reduce(torch.ones(100), async_op=True).wait(),
    "broadcast": lambda r, w: dist.broadcast(torch.ones(100), 0),
    "reduce": lambda r, w: dist.reduce(torch.ones(100), 0),
    "all_gather": lambda r, w: dist.all_gather([torch.ones(100) for _ in range(w)], torch.ones(100)),
    "all_to_all": lambda r, w: dist.all_to_all_single(torch.ones(100), torch.ones(100)),
    "gather": lambda r, w: dist.gather(torch.ones(100), [torch.ones(100) for _ in range(w)] if r == 0 else None),
    "scatter": lambda r, w: dist.scatter(torch.ones(100), [torch.ones(100) for _ in range(w)] if r == 0 else None),
    "reduce_scatter": lambda r, w: dist.reduce_scatter(torch.ones(100), [torch.ones(100) for _ in range(w)]),
    "barrier": lambda r, w: dist.barrier(),
    "objects": lambda r, w: dist.all_gather_object([None] * w, {"rank": r}),
    "a second group": lambda r, w: dist.all_reduce(torch.ones(100), group=dist.new_group()),
}


@pytest.mark.parametrize("name", OPS)
def test_each_collective_agrees_with_the_flight_recorder(name):
    """Whatever a script calls, the counting group saw the bytes that PyTorch's recorder saw."""
    for rank in counted(OPS[name]):
        assert rank["counted"]
        assert traffic.disagreement(rank["counted"], rank["recorded"]) == ""


def test_ddp_is_counted_to_the_last_collective():
    """The C++ reducer's own collectives are seen: gradients, and the bitmap of find_unused_parameters."""

    def run(rank, world):
        model = DistributedDataParallel(nn.Linear(64, 64), find_unused_parameters=True)
        for _ in range(3):
            model(torch.ones(2, 64)).sum().backward()

    for rank in counted(run):
        gradient, bitmap = Collective("all_reduce", 4 * (64 * 64 + 64), "float32"), Collective("all_reduce", 8, "int32")
        assert rank["counted"][-6:] == [gradient, bitmap] * 3
        assert rank["recorded"] == rank["counted"]


def test_another_backend_escapes_the_count_but_not_the_recorder():
    """A group with a backend of its own is not counted; the Flight Recorder gives it away."""
    for rank in counted(lambda r, w: dist.all_reduce(torch.ones(100), group=dist.new_group(backend="gloo"))):
        assert rank["counted"] == []
        assert traffic.disagreement(rank["counted"], rank["recorded"]) == "float32: counted 0 bytes, recorded 400"


def test_sends_are_counted_and_left_out_of_the_comparison():
    """gloo's recorder leaves point-to-point out; the count does not."""

    def run(rank, world):
        dist.send(torch.ones(100), 1) if rank == 0 else dist.recv(torch.ones(100), 0)

    sender, receiver = counted(run)
    assert sender["counted"] == [Collective("send", 400, "float32")]
    assert receiver["counted"] == [Collective("recv", 400, "float32")]
    assert traffic.disagreement(sender["counted"], sender["recorded"]) == ""


def test_a_full_recorder_is_an_error():
    """More collectives than the recorder keeps is an error, never a smaller number."""

    def run(rank, world):
        for _ in range(2100):
            dist.all_reduce(torch.ones(1))

    with pytest.raises(Exception, match="TORCH_FR_BUFFER_SIZE"):
        counted(run)


LOOPBACK = """
import sys
from breakfix.sandbox import network
if not network.private_loopback():
    sys.exit(77)
import torch, torch.distributed as dist
from breakfix.probes import traffic
from breakfix.ranks import run_ranks

OPS = {
    "all_reduce": lambda w, t: dist.all_reduce(t),
    "broadcast": lambda w, t: dist.broadcast(t, 0),
    "all_gather": lambda w, t: dist.all_gather([torch.empty_like(t) for _ in range(w)], t),
}
for world in (2, 3, 4):
    for name, op in OPS.items():
        for dtype in (torch.float32, torch.bfloat16):
            log = traffic.count({"cpu": "gloo"})
            def work(rank, world):
                op(world, torch.ones(2_000_000, dtype=dtype))
                return {"sent": sum(traffic.sent_bytes(c, world) for c in log)}
            before = network.loopback_bytes()
            sent = sum(rank["sent"] for rank in run_ranks(work, world, backend=traffic.BACKEND))
            print(name, world, dtype, network.loopback_bytes() - before, sent)
"""


def test_sent_bytes_are_the_kernels():
    """On a loopback of their own, ranks put on the wire what `sent_bytes` says, headers, and what TCP sent twice."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", LOOPBACK], capture_output=True, text=True, env=environment, timeout=120
    )
    if done.returncode == 77:
        pytest.skip("a network namespace needs root or user namespaces")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 18
    for line in done.stdout.splitlines():
        wire, sent = map(float, line.split()[-2:])
        assert sent <= wire <= 1.5 * sent, line  # how much TCP sends twice depends on how busy the machine is


def test_modelled_seconds_follow_the_formula():
    """Latency per collective and level of the tree, and 2(N-1)/N of the bytes over the bandwidth."""
    link = traffic.Link("a link", latency_s=0.001, bytes_per_s=1e6)
    collectives = [Collective("all_reduce", 1_000_000, "float32")] * 2
    assert traffic.modelled_seconds(collectives, 2, link) == pytest.approx(2 * (0.001 + 1.0))
    assert traffic.modelled_seconds(collectives, 4, link) == pytest.approx(2 * (0.002 + 1.5))
    assert traffic.modelled_seconds([Collective("barrier", 0, "")], 1024, link) == pytest.approx(0.010)


def test_what_a_person_reads():
    """The table has one line per op and dtype; the bytes are per dtype."""
    collectives = [Collective("all_reduce", 4_000_000, "float32"), Collective("all_reduce", 6_000_000, "float32")]
    collectives.append(Collective("barrier", 0, ""))
    assert traffic.table(collectives) == "all_reduce float32: 2 collectives, 10.00 MB\nbarrier: 1 collectives, 0 bytes"
    assert traffic.bytes_by_dtype(collectives) == {"float32": 10_000_000}
