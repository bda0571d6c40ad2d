"""Every private torch name that breakfix uses, one function each: such names move, and then one line here says so."""

import contextlib
import json
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


def register_backend(group, device: str, name: str, backend) -> None:
    """Make `backend`, a "gloo" or "nccl" one, what a Python process group uses for `device`, and its default."""
    kind = getattr(torch.distributed.ProcessGroup.BackendType, name.upper())
    try:
        group._register_backend(torch.device(device), kind, backend)
        group._set_default_backend(kind)
    except AttributeError as error:
        raise _moved("ProcessGroup._register_backend", error) from error


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
    for name in _names_of_saved(type(node)):
        try:
            raw = getattr(node, name)
        except RuntimeError:  # of a Python function, let go of
            continue
        for saved in raw if isinstance(raw, tuple | list) else (raw,):
            if not hasattr(saved, "data"):
                raise _moved("torch._C._autograd.SavedTensor.data", AttributeError("data"))
            if saved.data is not None:
                yield saved.data
    yield from getattr(node, "__dict__", {}).values()


@cache
def _names_of_saved(kind: type) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_raw_saved_")]
