"""Every private torch name that breakfix uses, one function each: such names move, and then one line here says so."""

import contextlib
import json
import pickle
from collections.abc import Iterator
from functools import cache

import torch


def _moved(name: str, error: Exception) -> ImportError:
    """The error to raise when torch no longer has `name`."""
    import torch

    return ImportError(f"torch {torch.__version__} has moved {name} ({error}); breakfix knows it from 2.11 to 2.14")


def flight_recorders() -> dict[str, list[dict]]:
    """The entries that PyTorch's Flight Recorders hold: gloo writes to the general one, NCCL to one of its own."""
    try:
        from torch._C import _distributed_c10d as c10d

        dumps = {"general": c10d._dump_fr_trace_json}
    except (ImportError, AttributeError) as error:
        raise _moved("torch._C._distributed_c10d._dump_fr_trace_json", error) from error
    if hasattr(c10d, "_dump_nccl_trace_json"):  # builds without CUDA do not have it
        dumps["nccl"] = c10d._dump_nccl_trace_json
    return {name: json.loads(dump()).get("entries", []) for name, dump in dumps.items()}


def flight_recorder_stacks() -> list[dict]:
    """The same entries in the order in which they were recorded, each with the Python "frames" that issued it."""
    try:
        from torch._C import _distributed_c10d as c10d

        dumps = [c10d._dump_fr_trace]
    except (ImportError, AttributeError) as error:
        raise _moved("torch._C._distributed_c10d._dump_fr_trace", error) from error
    if hasattr(c10d, "_dump_nccl_trace"):
        dumps.append(c10d._dump_nccl_trace)
    entries = [entry for dump in dumps for entry in pickle.loads(dump()).get("entries", [])]
    return sorted(entries, key=lambda entry: entry["time_created_ns"])


def register_backend(group, device: str, name: str, backend) -> None:
    """Make `backend`, a "gloo" or "nccl" one, what a Python process group uses for `device`, and its default."""
    kind = getattr(torch.distributed.ProcessGroup.BackendType, name.upper())
    try:
        group._register_backend(torch.device(device), kind, backend)
        group._set_default_backend(kind)
    except AttributeError as error:
        raise _moved("ProcessGroup._register_backend", error) from error


def fake_group(rank: int, size: int):
    """A backend whose collectives do nothing, for one rank of `size` without the others."""
    try:
        from torch.testing._internal.distributed.fake_pg import FakeProcessGroup

        return FakeProcessGroup._create_internal(rank, size, FakeProcessGroup.Options())
    except (ImportError, AttributeError) as error:
        raise _moved("torch.testing._internal.distributed.fake_pg.FakeProcessGroup", error) from error


def finished_work(result):
    """What a collective returns that is already done."""
    try:
        from torch._C._distributed_c10d import _create_work_from_future
    except ImportError as error:
        raise _moved("torch._C._distributed_c10d._create_work_from_future", error) from error
    future = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


def local_tensor(tensor):
    """A DTensor's own shard, without running an operator, which the public `to_local` does; any other tensor itself."""
    if not hasattr(tensor, "to_local"):
        return tensor
    try:
        return tensor._local_tensor
    except AttributeError as error:
        raise _moved("DTensor._local_tensor", error) from error


def dispatch_mode() -> type:
    """The class whose subclasses see every operator, in forward, backward and optimizer alike."""
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError as error:
        raise _moved("torch.utils._python_dispatch.TorchDispatchMode", error) from error
    return TorchDispatchMode


def in_backward() -> bool:
    """True inside backward(), on whichever thread runs it; hooks on gradients are inside too."""
    try:
        return torch._C._current_graph_task_id() != -1
    except AttributeError as error:
        raise _moved("torch._C._current_graph_task_id", error) from error


@contextlib.contextmanager
def foreach_default_on(device_type: str) -> Iterator[None]:
    """Let optimizers choose the foreach implementation for this type of device by themselves, as they do on CUDA."""
    from torch.optim import optimizer

    name = "_get_foreach_kernels_supported_devices"  # which it asks at every step
    original = getattr(optimizer, name, None)
    if original is None:
        raise _moved(f"torch.optim.optimizer.{name}", AttributeError(name))
    setattr(optimizer, name, lambda: [*original(), device_type])
    try:
        yield
    finally:
        setattr(optimizer, name, original)


def empty_host_cache() -> None:
    """Return the pinned memory that nobody uses to the system; `torch.accelerator.empty_host_cache` from 2.14 on."""
    try:
        torch._C._host_emptyCache()
    except AttributeError as error:
        raise _moved("torch._C._host_emptyCache", error) from error


@contextlib.contextmanager
def host_cache_emptied_by(empty_cache) -> Iterator[None]:
    """Let `empty_cache()` stand in for the real one meanwhile, as 2.11 has no public name for it."""
    original = getattr(torch._C, "_host_emptyCache", None)
    if original is None:
        raise _moved("torch._C._host_emptyCache", AttributeError("_host_emptyCache"))
    torch._C._host_emptyCache = empty_cache
    try:
        yield
    finally:
        torch._C._host_emptyCache = original


def sleep_on_stream(cycles: int) -> None:
    """Keep the current CUDA stream busy for so many cycles, and return at once."""
    try:
        torch.cuda._sleep(cycles)
    except AttributeError as error:
        raise _moved("torch.cuda._sleep", error) from error


def saved_by(node) -> Iterator:
    """What an autograd node has saved for backward: tensors, or what a hook packed them into. No hook is run.

    Nothing where backward has let go of it. A Python function's node may also hold tensors as attributes.
    """
    yield from (saved for _, saved in saved_named(node))
    yield from getattr(node, "__dict__", {}).values()


def saved_named(node) -> Iterator[tuple[str, object]]:
    """The same with its name, "self" or "result", without a Python function's attributes."""
    for name in _names_of_saved(type(node)):
        try:
            raw = getattr(node, name)
        except RuntimeError:  # of a Python function, let go of
            continue
        for saved in raw if isinstance(raw, tuple | list) else (raw,):
            if not hasattr(saved, "data"):
                raise _moved("torch._C._autograd.SavedTensor.data", AttributeError("data"))
            if saved.data is not None:
                yield name.removeprefix("_raw_saved_"), saved.data


@cache
def _names_of_saved(kind: type) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_raw_saved_")]


def compile_backend(name: str):
    """The backend of torch.compile that goes by `name`, as a function of a graph and example inputs."""
    try:
        from torch._dynamo import lookup_backend
    except ImportError as error:
        raise _moved("torch._dynamo.lookup_backend", error) from error
    return lookup_backend(name)


def compile_id(gm) -> str:
    """Which compilation of torch.compile captured a graph, "1/0": function 1, for the first time; "" where none did."""
    return str(gm.meta.get("dynamo_compile_id", ""))


def graph_break(gm) -> tuple[str, str]:
    """Why a graph of torch.compile ends before its function does, and at which line; "" where it does not."""
    if not compile_id(gm):
        return "", ""
    try:
        reason = gm.compile_subgraph_reason
        if not reason.graph_break:
            return "", ""
        stack = reason.user_stack
        return _first_line(reason.reason), f"{_file(stack[-1].filename)}:{stack[-1].lineno}" if stack else ""
    except AttributeError as error:
        raise _moved("GraphModule.compile_subgraph_reason", error) from error


def compilations() -> list[tuple[tuple, dict[str, str]]]:
    """What torch keeps of its latest compilations, each with a key: function, why it was compiled again or given up."""
    try:
        from torch._dynamo.utils import get_compilation_metrics

        found = get_compilation_metrics()
        names = {_frame(m): f"{m.co_name} ({_file(m.co_filename)}:{m.co_firstlineno})" for m in found if m.co_name}
        return [((m.compile_id, m.start_time_us), _compilation(m, names)) for m in found]
    except (ImportError, AttributeError) as error:
        raise _moved("torch._dynamo.utils.get_compilation_metrics", error) from error


def _compilation(metrics, names: dict[str, str]) -> dict[str, str]:
    """A compilation that was refused has no name of its own, but those of the same function before it have."""
    again = _first_line(metrics.recompile_reason).partition("#")[0].strip()
    failed = (_first_line(metrics.fail_reason) or metrics.fail_type) if metrics.fail_type else ""
    return {"function": names.get(_frame(metrics), "?"), "recompiled": _without_id(again), "failed": failed}


def _frame(metrics) -> str:
    return str(metrics.compile_id).partition("/")[0]


def _without_id(reason: str) -> str:
    """ "1/0: self.steps == 1" tells the compilation whose guard failed, then the guard."""
    return reason.partition(": ")[2] or reason


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0].strip()


def _file(path: str | None) -> str:
    return (path or "?").replace("\\", "/").rpartition("/")[2]


def loader_iterator() -> type:
    """The class of what a DataLoader returns when it is iterated."""
    try:
        from torch.utils.data.dataloader import _BaseDataLoaderIter
    except ImportError as error:
        raise _moved("torch.utils.data.dataloader._BaseDataLoaderIter", error) from error
    return _BaseDataLoaderIter


def order_of(node) -> int:
    """A number that grows with the order in which a thread's operators ran."""
    try:
        return node._sequence_nr()
    except AttributeError as error:
        raise _moved("torch.autograd.graph.Node._sequence_nr", error) from error


def record_allocations(on: bool) -> None:
    """Have the CUDA allocator keep its events with Python's stacks, or no longer."""
    try:
        record = torch.cuda.memory._record_memory_history
    except AttributeError as error:
        raise _moved("torch.cuda.memory._record_memory_history", error) from error
    record(context="alloc", stacks="python", max_entries=200_000) if on else record(enabled=None)


def recorded_allocations() -> list[dict]:
    """The allocator's events so far, of the card that has the most: "action", "addr", "size", "frames"."""
    try:
        traces = torch.cuda.memory._snapshot()["device_traces"]
    except (AttributeError, KeyError) as error:
        raise _moved("torch.cuda.memory._snapshot", error) from error
    return max(traces, key=len, default=[])


def allocations_are_recorded() -> bool:
    """Whether somebody has them recorded already; False where this torch cannot say."""
    asked = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return torch.cuda.is_initialized() and asked is not None and asked()


def never_compile(code) -> None:
    """Let torch.compile leave frames of a code object, and of the functions defined in it, as they are.

    Unlike `torch.compiler.disable` this does not import the compiler, and does not end a graph that inlines it.
    """
    try:
        dynamo = torch._C._dynamo.eval_frame
        skip, default = dynamo._FrameAction.SKIP, dynamo._FrameAction.DEFAULT
        dynamo.set_code_exec_strategy(code, dynamo._FrameExecStrategy(skip, default))
    except AttributeError as error:
        raise _moved("torch._C._dynamo.eval_frame.set_code_exec_strategy", error) from error
    for inner in code.co_consts:
        if isinstance(inner, type(code)):
            never_compile(inner)


def fake_mode():
    """A mode whose tensors have a device, a shape and a dtype but no memory; ordinary tensors may be among them.

    Whether there is a card it asks once, now: somebody may pretend later that there is one.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError as error:
        raise _moved("torch._subclasses.fake_tensor.FakeTensorMode", error) from error
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.__class__ = type("FakeTensorMode", (FakeTensorMode,), {"avoid_device_init": mode.avoid_device_init})
    return mode


@contextlib.contextmanager
def fake_parameters_can_move() -> Iterator[None]:
    """Let `Module.to` move fake parameters: by itself it swaps them, which fails as something refers to them."""
    original = getattr(torch.utils, "swap_tensors", None)
    if original is None:
        raise _moved("torch.utils.swap_tensors", AttributeError("swap_tensors"))

    def swap(old: torch.Tensor, new: torch.Tensor) -> None:
        if not hasattr(new, "fake_device"):
            return original(old, new)
        old.data, old.fake_device = new, new.fake_device

    torch.utils.swap_tensors = swap
    try:
        yield
    finally:
        torch.utils.swap_tensors = original


@contextlib.contextmanager
def backward_run_by(walk) -> Iterator[None]:
    """Let `walk(outputs, gradients, keep_graph, create_graph, inputs, ...)` stand in for the autograd engine."""
    name = "_engine_run_backward"
    original = getattr(torch.autograd.graph, name, None)
    if original is None:
        raise _moved(f"torch.autograd.graph.{name}", AttributeError(name))
    users = [module for module in (torch.autograd.graph, torch.autograd) if getattr(module, name, None) is original]
    for user in users:
        setattr(user, name, walk)
    try:
        yield
    finally:
        for user in users:
            setattr(user, name, original)


def outputs_of(node) -> list:
    """`shape`, `dtype` and `device` of each output that a node's operator had."""
    try:
        return node._input_metadata
    except AttributeError as error:
        raise _moved("torch.autograd.graph.Node._input_metadata", error) from error


def no_modes():
    """Within it no dispatch mode is asked."""
    try:
        from torch.utils._python_dispatch import _disable_current_modes
    except ImportError as error:
        raise _moved("torch.utils._python_dispatch._disable_current_modes", error) from error
    return _disable_current_modes()


def no_function_modes():
    """Within it no function mode is asked, nor a subclass of Tensor."""
    try:
        return torch._C.DisableTorchFunction()
    except AttributeError as error:
        raise _moved("torch._C.DisableTorchFunction", error) from error


def has_modes() -> bool:
    """Whether a dispatch mode is entered."""
    try:
        return torch._C._len_torch_dispatch_stack() > 0
    except AttributeError as error:
        raise _moved("torch._C._len_torch_dispatch_stack", error) from error


_TOLD = {
    "stream_made": "_handle_stream_creation",  # (stream)
    "event_made": "_handle_event_creation",  # (event)
    "recorded": "_handle_event_record",  # (event, stream)
    "waits": "_handle_event_wait",  # (event, stream): the stream waits for the event
    "host_waited_for_event": "_handle_event_synchronization",  # (event)
    "host_waited_for_stream": "_handle_stream_synchronization",  # (stream)
    "host_waited_for_all": "_handle_device_synchronization",  # ()
    "new_tensor_at": "_handle_memory_allocation",  # (address): what was there before is forgotten
}


class StreamChecker:
    """PyTorch's own checker of accesses by several streams, what TORCH_CUDA_SANITIZER=1 uses; it needs no card.

    It is told what happens: streams and events by number, memory by address.
    """

    def __init__(self):
        try:
            from torch.cuda._sanitizer import EventHandler

            self._handler = EventHandler()
            for name, theirs in _TOLD.items():
                setattr(self, name, getattr(self._handler, theirs))
        except (ImportError, AttributeError) as error:
            raise _moved("torch.cuda._sanitizer.EventHandler", error) from error

    def launched(self, stream: int, what: str, reads: set[int], writes: set[int]) -> list:
        """A kernel on a stream; the accesses that nothing orders, each with `current_access` and `previous_access`."""
        names = {address: [] for address in reads | writes}
        return self._handler._handle_kernel_launch(stream, reads - writes, writes, writes, what, names)

    @property
    def launches(self) -> int:
        """The number of the last launch."""
        return self._handler.seq_num

    def ended_before(self, stream: int) -> dict[int, int]:
        """Of each stream the last launch that what comes next on this one is certain to follow."""
        return dict(self._handler.syncs.current_sync_states[stream])


def needs_values() -> tuple[type[Exception], ...]:
    """What a fake tensor raises where values are asked for, or a result whose size depends on them."""
    try:
        from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    except ImportError as error:
        raise _moved("torch._subclasses.fake_tensor.DataDependentOutputException", error) from error
    return DataDependentOutputException, DynamicOutputShapeException
