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
def test_flight_recorder_stacks_hold_the_lines_of_the_script():
    def work(rank, world):
        torch.distributed.all_reduce(torch.ones(2))
        torch.distributed.barrier()
        entries = _torch.flight_recorder_stacks()
        return {
            "entry": {k: entries[0][k] for k in ("process_group", "collective_seq_id", "is_p2p", "input_sizes")},
            "names": [frame["name"] for frame in entries[0]["frames"]],
            "files": [frame["filename"] for frame in entries[0]["frames"]],
        }

    [result] = run_ranks(work, 1)
    assert result["entry"] == {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "is_p2p": False,
        "input_sizes": [[2]],
    }
    assert result["files"][result["names"].index("work")] == __file__


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


def test_a_fake_mode_has_devices_that_are_not_there():
    with _torch.fake_mode():
        x = torch.ones(2, 3, device="cuda:1")
        assert x.device == torch.device("cuda", 1)
        with pytest.raises(RuntimeError):
            x + torch.ones(2, 3)


def test_fake_parameters_move():
    with _torch.fake_mode(), _torch.fake_parameters_can_move():
        layer = torch.nn.Linear(2, 2)
        weight = layer.weight
        assert layer.to("cuda:1", torch.bfloat16).weight is weight
        assert (weight.device, weight.dtype) == (torch.device("cuda", 1), torch.bfloat16)
        assert layer(torch.ones(1, 2, device="cuda:1", dtype=torch.bfloat16)).device == weight.device


def test_another_may_stand_in_for_the_engine():
    seen, x = [], torch.ones(2, requires_grad=True)

    def walk(outputs, gradients, keep_graph, create_graph, inputs, *_, **options):
        seen.append((len(outputs), len(inputs)))
        return (torch.zeros(2),) * len(inputs)

    with _torch.backward_run_by(walk):
        x.sum().backward()
        assert torch.equal(torch.autograd.grad(x.sum(), [x])[0], torch.zeros(2))
    assert seen == [(1, 0), (1, 1)]
    x.sum().backward()
    assert torch.equal(x.grad, torch.ones(2))


def test_a_node_knows_the_outputs_of_its_operator():
    x = torch.ones(4, 3, requires_grad=True)
    outputs = _torch.outputs_of(x.unbind(1)[0].grad_fn)
    assert [(tuple(o.shape), o.dtype, o.device.type) for o in outputs] == [((4,), torch.float32, "cpu")] * 3


def test_no_modes_hides_a_mode():
    seen = []

    class Mode(_torch.dispatch_mode()):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    with Mode():
        with _torch.no_modes():
            torch.ones(2)
        torch.zeros(2)
    assert seen == ["aten::zeros"]


def test_function_modes_and_subclasses_can_be_left_aside():
    class Tagged(torch.Tensor):
        pass

    tagged = torch.ones(2).as_subclass(Tagged)
    assert type(tagged + 1) is Tagged
    with _torch.no_function_modes():
        assert type(tagged + 1) is torch.Tensor


def test_it_is_known_whether_a_mode_is_entered():
    class Mode(_torch.dispatch_mode()):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    assert not _torch.has_modes()
    with Mode():
        assert _torch.has_modes()
    assert not _torch.has_modes()


def test_what_a_node_has_saved_has_a_name():
    x = torch.ones(3, requires_grad=True)
    assert [name for name, _ in _torch.saved_named(x.log().grad_fn)] == ["self"]
    assert [name for name, _ in _torch.saved_named(x.exp().grad_fn)] == ["result"]


def test_a_compile_backend_is_found_by_name():
    assert callable(_torch.compile_backend("eager"))


def test_a_loader_is_iterated_by_the_class_that_is_known():
    loader = torch.utils.data.DataLoader(torch.arange(4))
    assert isinstance(iter(loader), _torch.loader_iterator())
    assert "__next__" in vars(_torch.loader_iterator())


def test_nodes_are_numbered_in_the_order_of_their_operators():
    x = torch.ones(3, requires_grad=True)
    first = x.exp()
    assert _torch.order_of(first.grad_fn) < _torch.order_of((first * x).grad_fn)


def test_allocations_can_be_recorded():
    assert hasattr(torch.cuda.memory, "_record_memory_history")
    assert hasattr(torch.cuda.memory, "_snapshot")
    assert not _torch.allocations_are_recorded()
    if torch.cuda.is_available():
        _torch.record_allocations(True)
        kept = torch.ones(1 << 20, device="cuda")
        assert any(event["size"] >= kept.nbytes for event in _torch.recorded_allocations())
        _torch.record_allocations(False)


def test_code_that_is_never_compiled_is_left_alone():
    seen = []

    def backend(gm, example_inputs):
        seen.append(gm)
        return gm.forward

    def beside(x):
        return x + 1

    def function(x):
        torch._dynamo.graph_break()
        return beside(x) * 2

    torch.compiler.reset()
    _torch.never_compile(function.__code__)
    assert torch.compile(function, backend=backend)(torch.ones(1)).item() == 4
    assert len(seen) == 1, "what it calls may be"
    _torch.never_compile(beside.__code__)
    torch.compiler.reset()
    assert torch.compile(function, backend=backend)(torch.ones(1)).item() == 4
    assert len(seen) <= 2


def test_a_graph_knows_its_compilation_and_why_it_ends():
    seen = []

    def backend(gm, example_inputs):
        seen.append((_torch.compile_id(gm).partition("/")[2], *_torch.graph_break(gm)))
        return gm.forward

    def function(x):
        if x.sum() > 0:
            return x + 1
        return x

    torch.compiler.reset()
    torch.compile(function, backend=backend)(torch.ones(2))
    (first, why, at), last = seen
    assert (first, bool(why)) == ("0", True)
    assert at.startswith("test_private_torch.py:")
    assert last == ("0", "", "")


def test_compilations_tell_function_and_failed_guard():
    before = {key for key, _ in _torch.compilations()}

    def function(x, n):
        return x * n

    torch.compiler.reset()
    compiled = torch.compile(function, backend="eager")
    compiled(torch.ones(2), 2), compiled(torch.ones(2), 3)
    told = [what for key, what in _torch.compilations() if key not in before]
    assert [("function (" in what["function"], bool(what["recompiled"])) for what in told] == [
        (True, False),
        (True, True),
    ]
    assert told[1]["recompiled"] == "n == 2"


def test_a_fake_group_does_nothing_at_once():
    group = _torch.fake_group(3, 1024)
    x = torch.ones(2)
    group.allreduce([x]).wait()
    assert (group.rank(), group.size(), x.tolist()) == (3, 1024, [1.0, 1.0])


def test_finished_work_is_finished_and_has_its_result():
    work = _torch.finished_work(["result"])
    assert work.is_completed()
    assert work.get_future().value() == ["result"]


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked, which is safe on Linux only")
def test_a_local_tensor_is_the_shard_itself():
    def work(rank, world):
        from torch.distributed.fsdp import fully_shard

        model = torch.nn.Linear(2, 4)
        fully_shard(model)
        local = _torch.local_tensor(model.weight)
        return {"shape": list(local.shape), "type": type(local).__name__, "same": local is _torch.local_tensor(local)}

    assert run_ranks(work, 2)[1] == {"shape": [2, 2], "type": "Tensor", "same": True}


def test_a_fake_mode_keeps_to_what_it_found(monkeypatch):
    mode = _torch.fake_mode()
    found = mode.avoid_device_init
    monkeypatch.setattr(torch.cuda, "is_available", lambda: not torch.cuda._is_compiled())
    with mode:
        assert torch.ones(4, 4, device="cuda")[:2, 1].device.type == "cuda"
    assert mode.avoid_device_init is found


def test_the_checker_of_streams_knows_a_race_from_an_order():
    checker, address = _torch.StreamChecker(), 42
    for stream in (1, 2):
        checker.stream_made(stream)
    assert checker.launched(1, "write", set(), {address}) == []
    (found,) = checker.launched(2, "read", {address}, set())
    assert (found.current_access.type.name, found.current_access.stream) == ("READ", 2)
    assert (found.previous_access.type.name, found.previous_access.operator) == ("WRITE", "write")
    assert found.current_access.stack_trace
    checker.event_made(7)
    checker.recorded(7, 1)
    checker.waits(7, 2)
    assert checker.launched(2, "read", {address}, set()) == []
    assert (checker.launches, checker.ended_before(2)[1]) == (3, 1)
    assert checker.launched(1, "write", set(), {address}), "nobody waited for the reads"
    checker.new_tensor_at(address)
    assert checker.launched(2, "write", set(), {address}) == [], "another tensor is there"
    assert checker.launched(1, "read", {address}, set())


@pytest.mark.parametrize("waited", ["event", "stream", "all"])
def test_the_checker_of_streams_knows_that_the_host_waited(waited):
    checker = _torch.StreamChecker()
    checker.stream_made(1), checker.stream_made(2), checker.event_made(7)
    checker.launched(1, "write", set(), {42})
    checker.recorded(7, 1)
    tell = {"event": lambda: checker.host_waited_for_event(7), "stream": lambda: checker.host_waited_for_stream(1)}
    tell.get(waited, checker.host_waited_for_all)()
    assert checker.launched(2, "read", {42}, set()) == []


def test_what_a_fake_tensor_raises_where_values_are_needed():
    with _torch.fake_mode():
        with pytest.raises(_torch.needs_values()):
            torch.ones(1, device="cuda").item()
        with pytest.raises(_torch.needs_values()):
            torch.ones(1, device="cuda").nonzero()
