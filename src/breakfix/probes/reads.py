"""Where a script reads numbers from the device: at each read the host waits for all that the device still has to do.

    with Reads() as reads:  # Reads("cuda") on a GPU
        for batch in batches:
            step(batch)
    print(reads)

Counted are item(), tolist(), cpu(), numpy(), bool(), float(), int(), print and format of a tensor, and what must read a
number to know the size of its result: nonzero, unique, a boolean index. A function mode sees what Python calls, a
dispatch mode what operators do by themselves. On a CPU nothing waits: what is counted there would wait on a GPU. There
to("cpu") does not count, as it cannot be told from to(device).

On CUDA `syncs` has beside it what `torch.cuda.set_sync_debug_mode` reports: blocking copies in both directions too.
Seen is the thread that entered. Functions compiled with torch.compile run eagerly meanwhile.
"""

import os
import sys
import warnings
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from breakfix.probes import _torch

_METHODS = {"item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select"}
_METHODS |= {"equal", "allclose", "is_nonzero", "bincount"}
_METHODS |= {f"__{name}__" for name in ("bool", "float", "int", "index", "complex", "array", "repr", "format")}
_OPERATORS = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "unique_consecutive"}
_OPERATORS |= {"masked_select", "equal"}
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_OPTIM = f"{_TORCH}optim{os.sep}"
_SELF = __file__


@dataclass(frozen=True)
class Line:
    """A line that reads: what it calls, and through which line of a library, if any."""

    what: str  # "item", "format", "to cpu"
    at: str  # "train.py:52"
    via: str = ""  # "aggregation.py:86"

    def __str__(self) -> str:
        return f"{self.what} at {self.at}{f', via {self.via}' if self.via else ''}"


class Reads:
    """Counts the reads of tensors on one type of device: `lines` has a count for each line."""

    def __init__(self, device: str = "cpu"):
        self.device = device
        self.lines: Counter[Line] = Counter()
        self.syncs: Counter[str] = Counter()  # "train.py:52" to how often CUDA was waited for there; on CUDA only
        self.in_a_read = False  # what a read calls is part of it

    @property
    def count(self) -> int:
        """How many reads there have been so far."""
        return self.lines.total()

    def __enter__(self) -> "Reads":
        self._undo = ExitStack()
        if self.device == "cuda":  # not run on a GPU yet
            self._undo.enter_context(_Syncs(self.syncs))
        self._undo.enter_context(_operators()(self))
        self._undo.enter_context(_Calls(self))
        return self

    def __exit__(self, *error) -> None:
        self._undo.close()

    def __str__(self) -> str:
        found = [f"{self.count} reads of {self.device} tensors"]
        found += [f"  {n} x {line}" for line, n in self.lines.most_common()]
        if self.device == "cuda":
            found += [f"{self.syncs.total()} waits by torch.cuda.set_sync_debug_mode"]
            found += [f"  {n} x {at}" for at, n in self.syncs.most_common()]
        return "\n".join(found)

    def note(self, what: str) -> None:
        """Count a read in the line that is running, unless an optimizer reads its own step counter there."""
        if line := _line(what, on_cpu=self.device == "cpu"):
            self.lines[line] += 1


class _Calls(TorchFunctionMode):
    """Sees every function and method of torch that Python calls."""

    def __init__(self, reads: Reads):
        super().__init__()
        self.reads = reads

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        what = _read_by_call(getattr(func, "__name__", ""), args, kwargs, self.reads.device)
        if not what or self.reads.in_a_read:
            return func(*args, **kwargs)
        self.reads.note(what)
        self.reads.in_a_read = True
        try:
            return func(*args, **kwargs)
        finally:
            self.reads.in_a_read = False


def _operators() -> type:
    class Operators(_torch.dispatch_mode()):
        """Sees every operator, also those that no Python code calls."""

        def __init__(self, reads: Reads):
            super().__init__()
            self.reads = reads

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = func.overloadpacket.__name__
            if not self.reads.in_a_read and _read_by_operator(name, args, kwargs or {}, self.reads.device):
                self.reads.note(name)
            return func(*args, **(kwargs or {}))

    return Operators


class _Syncs:
    """Collects the warnings of CUDA's own debug mode, and lets the others out again."""

    def __init__(self, syncs: Counter):
        self.syncs = syncs

    def __enter__(self) -> None:
        self._mode = torch.cuda.get_sync_debug_mode()
        self._record = warnings.catch_warnings(record=True)
        self._caught = self._record.__enter__()
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")

    def __exit__(self, *error) -> None:
        torch.cuda.set_sync_debug_mode(self._mode)
        self._record.__exit__(*error)
        for w in self._caught:
            if "synchronizing CUDA operation" in str(w.message):
                self.syncs[f"{Path(w.filename).name}:{w.lineno}"] += 1
            else:
                warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)


def _read_by_call(name: str, args: tuple, kwargs: dict, device: str) -> str:
    """What a call of torch reads from `device`, in a word or two; "" where it reads nothing."""
    tensor = args[0] if args else None
    if not isinstance(tensor, Tensor) or tensor.device.type != device:
        return ""
    if name in _METHODS:
        return name.strip("_")
    if name == "to" and device != "cpu" and _goes_to_host(args[1:], kwargs):
        return "to cpu"
    if name == "__getitem__" and _has_mask(args[1]):
        return "boolean index"
    if name == "where" and len(args) + len(kwargs) == 1:
        return "where"
    return ""


def _read_by_operator(name: str, args: tuple, kwargs: dict, device: str) -> bool:
    """Whether an operator brings something of `device` to the host."""
    copied = {"_to_copy": 0, "copy_": 1}.get(name, 0)
    tensor = args[copied] if len(args) > copied else None
    if not isinstance(tensor, Tensor) or tensor.device.type != device:
        return False
    if name == "_to_copy":
        return device != "cpu" and _goes_to_host((), kwargs)
    if name == "copy_":
        waits = not (args[2:3] == (True,) or kwargs.get("non_blocking"))
        return device != "cpu" and args[0].device.type == "cpu" and waits
    return name in _OPERATORS


def _goes_to_host(places: tuple, kwargs: dict) -> bool:
    """Whether the arguments of Tensor.to() name the host, and not as a copy that nobody waits for."""
    places = [kwargs.get("device"), kwargs.get("other"), *places]
    kinds = [p.device.type if isinstance(p, Tensor) else str(p).partition(":")[0] for p in places if p is not None]
    return "cpu" in kinds and not kwargs.get("non_blocking", False)


def _has_mask(index) -> bool:
    indices = index if isinstance(index, tuple) else (index,)
    return any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices)


def _line(what: str, on_cpu: bool) -> Line | None:
    """The innermost line of somebody's own code, and the innermost of a library. None inside an optimizer on a CPU.

    An optimizer keeps its step counters on the CPU, also where the parameters are on a GPU.
    """
    frame, via = sys._getframe(1), ""
    while frame:
        path = frame.f_code.co_filename
        if on_cpu and path.startswith(_OPTIM):
            return None
        if path != _SELF and not path.startswith(_TORCH):
            at = f"{Path(path).name}:{frame.f_lineno}"
            if not _is_library(path):
                return Line(what, at, via)
            via = via or at
        frame = frame.f_back
    return Line(what, "?", via)


def _is_library(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path or path.startswith("<frozen")
