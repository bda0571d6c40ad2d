"""What `model.to(device)` leaves behind, and what a step then does between devices; no card is needed to see it.

    print(*left_behind(model), sep="\\n")        # tensors that the model reaches and its `to` does not move

    with card() as here:                        # a FakeCard, or with CUDA a RealCard
        model, batch = here.copy(model).to(here.device), here.copy(batch).to(here.device)
        model(batch).sum().backward()           # raises what a card raises
    print(here.report())                        # copies between devices, values read, float64: each with its line

`FakeCard` is PyTorch's FakeTensorMode: tensors have a device, a shape and a dtype, and no values. What is asked of two
devices raises PyTorch's own error. `meta` would not do: it lets a matrix product of meta and CPU pass.
"""

import copy
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from breakfix.probes import _torch

TRUSTED = (str(Path(torch.__file__).parent), str(Path(__file__).parent))  # frames that are nobody's own line


# ------------------------------------------------------------------------------------------------ what is left behind


@dataclass(frozen=True)
class Stray:
    """A tensor that did not come along."""

    path: str
    tensor: Tensor

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    def __str__(self) -> str:
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        return f"{self.path}: {dtype} {list(self.tensor.shape)} stays on {self.tensor.device}, {self.nbytes} bytes"


def left_behind(model: nn.Module, device: torch.device | str = "cuda") -> list[Stray]:
    """The tensors of one dimension or more that `model` reaches and a copy of it, moved to `device`, has elsewhere.

    The copy is fake, and moved by its own `to`: an override counts. Single numbers are left out, as every device takes
    those from the CPU.
    """
    with FakeCard(device) as card:
        moved = card.copy(model)
        moved.to(card.device)
        here = [Stray(path, t) for path, t in reached(moved) if t.device != card.device and t.ndim > 0]
    return here


def reached(thing: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor that attributes, lists, dicts, closures and their like lead to, once, with the way to it."""
    queue, seen = deque([(path, thing)]), set()
    while queue:
        path, value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield path, value
        else:
            queue += ((f"{path}{step}".lstrip("."), below) for step, below in _below(value))


def _below(value: Any) -> Iterator[tuple[str, Any]]:
    """What `value` leads to directly, and by which step."""
    if isinstance(value, nn.Module):
        registered = value._parameters | value._buffers | value._modules
        plain = {name: v for name, v in vars(value).items() if name not in ("_parameters", "_buffers", "_modules")}
        yield from ((f".{name}", v) for name, v in (registered | plain).items())
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", v) for key, v in value.items())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"[{i}]", v) for i, v in enumerate(value))
    elif isinstance(value, partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, FunctionType):
        names = value.__code__.co_freevars
        yield from ((f".{name}", _content(cell)) for name, cell in zip(names, value.__closure__ or (), strict=True))
    elif hasattr(value, "__dict__") and not isinstance(value, type | ModuleType):
        yield from ((f".{name}", v) for name, v in vars(value).items())


def _content(cell) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


# ---------------------------------------------------------------------------------------- what passes between devices


@dataclass(frozen=True)
class Event:
    """Something that a step did: `bytes` copied from one device to another, read by Python, or made in float64."""

    what: str  # "copied", "read" or "float64"
    nbytes: int
    devices: str  # "cpu to cuda:0", or the one device
    line: str  # the innermost line that is not PyTorch's; of a backward pass the one that asked for it

    def __str__(self) -> str:
        return f"{self.what}: {self.nbytes} bytes, {self.devices}, {self.line or 'no line of yours'}"


class Crossings(_torch.dispatch_mode()):
    """Log every copy between two devices, every value of a card that Python reads, and every float64 result."""

    def __init__(self):
        super().__init__()
        self.events: list[Event] = []

    def of(self, what: str) -> list[Event]:
        """The events of one kind, in order."""
        return [event for event in self.events if event.what == what]

    def bytes(self, what: str) -> int:
        return sum(event.nbytes for event in self.of(what))

    def report(self) -> str:
        """One line per line of code, with how often and how many bytes."""
        seen: dict[tuple, list[int]] = {}
        for e in self.events:
            seen.setdefault((e.what, e.devices, e.line or "no line of yours"), []).append(e.nbytes)
        told = [f"{what} {len(n)} times, {sum(n)} bytes, {where}: {line}" for (what, where, line), n in seen.items()]
        return "\n".join(told) or "nothing was copied between devices, nothing read, nothing in float64"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        _refuse_index_elsewhere(func, args)
        before = args[1].device if func.overloadpacket is torch.ops.aten.copy_ else None
        result = func(*args, **(kwargs or {}))
        for event in _events(func, args, result, before):
            self.events.append(Event(*event, _line()))
        return result


def _events(func, args: tuple, result: Any, source: torch.device | None) -> Iterator[tuple[str, int, str]]:
    op, aten = func.overloadpacket, torch.ops.aten
    if op is aten._to_copy or op is aten.copy_:
        source = source or args[0].device
        if source != result.device:
            yield "copied", _nbytes(result), f"{source} to {result.device}"
    elif op is aten._local_scalar_dense and args[0].device.type != "cpu":
        yield "read", args[0].element_size(), str(args[0].device)
    elif op in (aten.index, aten.index_put, aten.index_put_):
        for index in _tensors(args[1]):
            if index.device != args[0].device:
                yield "copied", _nbytes(index), f"{index.device} to {args[0].device}"
    for out in _tensors(result):
        if out.dtype == torch.float64:
            yield "float64", _nbytes(out), str(out.device)


def _refuse_index_elsewhere(func, args: tuple) -> None:
    """A tensor on the CPU can't be indexed by one on a card; fake tensors would let it pass."""
    aten = torch.ops.aten
    if func.overloadpacket in (aten.index, aten.index_put, aten.index_put_) and args[0].device.type == "cpu":
        for index in _tensors(args[1]):
            if index.device.type != "cpu":
                raise RuntimeError(f"a tensor on the CPU is indexed by a tensor on {index.device}")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _tensors(v)


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _line() -> str:
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith((*TRUSTED, "<frozen")):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""


class FakeCard(Crossings):
    """A card that is not there: inside, `copy` gives fake copies, and what is computed from them is fake.

    What needs values raises: `.item()`, `if tensor.any()`, a result whose size depends on them. `backward()` walks the
    graph on this thread; hooks on tensors are not called.
    """

    def __init__(self, device: torch.device | str = "cuda"):
        super().__init__()
        self.mode = _torch.fake_mode()
        with self.mode:
            self.device = torch.empty(0, device=device).device  # with its index

    def __enter__(self):
        self.stack = ExitStack()
        self.stack.enter_context(_torch.fake_parameters_can_move())
        self.stack.enter_context(_torch.backward_run_by(walk_backward))
        self.stack.enter_context(self.mode)
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self.stack.close()

    def copy(self, thing: Any) -> Any:
        """A copy of a model, a tensor, or whatever holds some: every tensor fake, on the device that it is on."""
        memo = {id(t): self._fake(t) for _, t in reached(thing)}
        with _torch.no_modes():
            return copy.deepcopy(thing, memo)

    def _fake(self, tensor: Tensor) -> Tensor:
        with self.mode:
            fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake.requires_grad_(tensor.requires_grad)


class RealCard(Crossings):
    """The same on a card that is there: `copy` gives copies, on the device that they were on."""

    copy = staticmethod(copy.deepcopy)

    def __init__(self, device: torch.device | str = "cuda"):
        super().__init__()
        self.device = torch.empty(0, device=device).device  # with its index


def card(device: torch.device | str = "cuda") -> FakeCard | RealCard:
    """A card to try something on: the real one where there is CUDA, else a fake one."""
    return RealCard(device) if torch.cuda.is_available() else FakeCard(device)


# ---------------------------------------------------------------------------------------------------- backward by hand


def walk_backward(outputs, gradients, keep_graph, create_graph, inputs, *_, **options) -> tuple:
    """What the autograd engine does, on this thread: it asks the driver about a card, also where the card is fake."""
    wanted = [torch.autograd.graph.get_gradient_edge(t) for t in inputs]
    arrived: dict[Any, list] = {}  # for each node the sum of the gradients so far, by output of its operator
    roots = [torch.autograd.graph.get_gradient_edge(t) for t in outputs]
    for edge, gradient in zip(roots, gradients, strict=True):
        _arrive(arrived, edge.node, edge.output_nr, gradient)
    found = [None] * len(wanted)
    with torch.no_grad():
        for node in _in_order([edge.node for edge in roots]):
            came = arrived.pop(node, None)
            if came is None:
                continue
            for k, edge in enumerate(wanted):
                found[k] = came[edge.output_nr] if edge.node == node else found[k]
            if wanted and hasattr(node, "variable"):
                continue  # grad() leaves .grad alone
            passed = node(*came)
            for (below, i), gradient in zip(node.next_functions, _as_tuple(passed), strict=False):
                if below is not None and gradient is not None:
                    _arrive(arrived, below, i, gradient)
    return tuple(found)


def _arrive(arrived: dict[Any, list], node, i: int, gradient: Tensor) -> None:
    """Add a gradient, summed and rounded to the shape and dtype of the output that it is the gradient of."""
    outputs = _torch.outputs_of(node)
    fitting = gradient.sum_to_size(outputs[i].shape).to(outputs[i].dtype)
    came = arrived.setdefault(node, [None] * len(outputs))
    came[i] = fitting if came[i] is None else came[i] + fitting


def _as_tuple(value: Any) -> tuple:
    return value if isinstance(value, tuple) else (value,)


def _in_order(roots: list) -> list:
    """The nodes below `roots`, each before all that it passes gradients to."""
    done, order, stack = set(), [], [(node, False) for node in roots]
    while stack:
        node, finished = stack.pop()
        if finished:
            order.append(node)
        elif node not in done:
            done.add(node)
            stack.append((node, True))
            stack += [(below, False) for below, _ in node.next_functions if below is not None]
    return order[::-1]
