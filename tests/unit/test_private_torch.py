"""Each private torch name that breakfix uses still does what it is used for."""

import sys

import pytest
import torch

from breakfix.probes import _torch
from breakfix.ranks import run_ranks


def test_a_dispatch_mode_sees_backward_and_optimizers_too():
    seen = []

    class Mode(_torch.dispatch_mode()):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    with Mode():
        p = torch.nn.Parameter(torch.ones(2))
        p.exp().sum().backward()
        torch.optim.SGD([p], lr=0.1).step()
    assert {"aten::exp", "aten::mul.Tensor", "aten::add_.Tensor"} <= set(seen)


def test_in_backward_is_true_in_backward_only():
    seen = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda grad: seen.append(_torch.in_backward()))
    seen.append(_torch.in_backward())
    x.sum().backward()
    seen.append(_torch.in_backward())
    assert seen == [False, True, False]


def test_foreach_becomes_the_default_and_is_put_back():
    assert "aten::_foreach_sqrt" not in _ops_of_a_step()
    with _torch.foreach_default_on("cpu"):
        assert "aten::_foreach_sqrt" in _ops_of_a_step()
    assert "aten::_foreach_sqrt" not in _ops_of_a_step()


def _ops_of_a_step() -> set[str]:
    p = torch.nn.Parameter(torch.ones(2))
    p.sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.optim.Adam([p]).step()
    return {event.key for event in profile.key_averages()}


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked, which is safe on Linux only")
def test_flight_recorders_hold_op_shape_and_dtype():
    def work(rank, world):
        torch.distributed.all_reduce(torch.ones(2, 3, dtype=torch.bfloat16))
        return {"entry": {k: _torch.flight_recorders()["general"][-1][k] for k in names}}

    names = ("profiling_name", "input_sizes", "input_dtypes", "record_id")
    [result] = run_ranks(work, 1)
    assert list(result["entry"].values()) == ["gloo:all_reduce", [[2, 3]], ["BFloat16"], 0]


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked, which is safe on Linux only")
def test_a_python_group_finds_the_backend_registered_for_it():
    def work(rank, world):
        group = torch.distributed.ProcessGroup(rank, world)
        store = torch.distributed.HashStore()
        _torch.register_backend(group, "cpu", "gloo", torch.distributed.ProcessGroupGloo(store, rank, world))
        group.allreduce([torch.ones(3)]).wait()
        return {"last": _torch.flight_recorders()["general"][-1]["profiling_name"]}

    assert run_ranks(work, 1) == [{"last": "gloo:all_reduce"}]


def test_the_host_cache_can_be_emptied_and_watched_being_emptied():
    called = []
    _torch.empty_host_cache()  # without CUDA there is none, and nothing happens
    with _torch.host_cache_emptied_by(lambda: called.append("here")):
        _torch.empty_host_cache()
    _torch.empty_host_cache()
    assert called == ["here"]


def test_a_stream_can_be_kept_busy():
    assert hasattr(torch.cuda, "_sleep")
    if torch.cuda.is_available():
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        _torch.sleep_on_stream(1_000_000)
        after.record()
        torch.cuda.synchronize()
        assert before.elapsed_time(after) > 0.1
