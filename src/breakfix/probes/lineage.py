"""What keeps an autograd graph alive: the nodes, and the tensors saved for backward, that kept values lead to.

    growth = Growth(beside=model)
    for batch in loader:
        step(batch)
        growth.look({"losses": losses, "state": state})     # growth.look(alive()) looks at every tensor there is
    print(growth.report())

A tensor with a `grad_fn` holds that node, a node holds the nodes it came from and what they saved. Backward lets go of
what was saved, not of the nodes. So there are two leaks: what is saved is memory of the card, and a node is memory of
the host, some 700 bytes (torch 2.14.1, CPU, glibc).

Seen: tensors in lists, tuples, sets, dicts, deques, attributes, closures and partials, and gradients that have a graph.
Not seen: what lies in generators and in C++ objects, NumPy arrays, and what a checkpoint keeps to compute again. Hooks
on saved tensors are not run; what they have packed is counted as it lies there.
"""

import gc
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from breakfix.probes import _torch

_PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType, types.BuiltinFunctionType)


@dataclass(frozen=True)
class Held:
    """What values keep alive: autograd nodes; bytes saved for backward; and these with the bytes of the values' own.

    Each storage counts once and as a whole. Parameters do not count, nor does what lies `beside`.
    """

    nodes: float = 0
    saved_bytes: float = 0
    bytes: float = 0

    def __str__(self):
        return f"{self.nodes:,.0f} nodes, {self.saved_bytes:,.0f} bytes saved for backward, {self.bytes:,.0f} in all"


def held(values: Any, beside: Any = ()) -> Held:
    """What `values` keep alive, not counting the tensors in `beside`: a model, a data set."""
    return _weigh([root for _, root in places(values)], _known(beside))


def held_by_place(values: Any, beside: Any = ()) -> dict[str, Held]:
    """The same for each place of `values` by itself, where there is a graph; a node that two places hold is in both."""
    found: dict[str, list] = {}
    for place, root in places(values):
        found.setdefault(place, []).append(root)
    known = _known(beside)
    each = {place: _weigh(roots, known) for place, roots in found.items()}
    return {place: it for place, it in each.items() if it.nodes}


def alive() -> list[Tensor]:
    """Every tensor with a graph that Python code holds anywhere in this process."""
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, Tensor)}  # few, and objects are many
    return [t for t in objects if type(t) in kinds and t.grad_fn is not None]


def graph(roots: Any) -> set:
    """The autograd nodes that tensors, or nodes, lead to."""
    seen, ahead = set(), [root.grad_fn if isinstance(root, Tensor) else root for root in roots]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [before for before, _ in node.next_functions]
    return seen


class Growth:
    """What is held, look by look: `looks` has the totals, `rate` what each step adds."""

    def __init__(self, beside: Any = ()):
        self.beside, self.looks, self._places = beside, [], []

    def look(self, values: Any) -> Held:
        """Look at what `values` hold now; call it once a step, always at the same line."""
        self.looks.append(held(values, self.beside))
        self._places.append(held_by_place(values, self.beside))
        return self.looks[-1]

    @property
    def rate(self) -> Held:
        """What each step adds, over the second half of the looks: what comes into being once is not growth."""
        return _rate(self.looks)

    @property
    def rates(self) -> dict[str, Held]:
        """The same for each place by itself."""
        every = {place for looked in self._places for place in looked}
        return {place: _rate([looked.get(place, Held()) for looked in self._places]) for place in sorted(every)}

    def report(self) -> str:
        """What each step adds: in all, then by place, the most bytes first."""
        growing = sorted(((r.bytes, r.nodes, f"{place}: {r}") for place, r in self.rates.items() if r.nodes > 0))
        return "\n".join([f"each step adds {self.rate}", *(f"    {line}" for *_, line in reversed(growing))])


def _rate(looks: list[Held]) -> Held:
    if len(looks) < 2:
        return Held()
    first, last = looks[(len(looks) - 1) // 2], looks[-1]
    steps = len(looks) - 1 - (len(looks) - 1) // 2
    pairs = ((first.nodes, last.nodes), (first.saved_bytes, last.saved_bytes), (first.bytes, last.bytes))
    return Held(*((after - before) / steps for before, after in pairs))


# ------------------------------------------------------------------------------------------------- where values lie


def places(values: Any) -> Iterator[tuple[str, Any]]:
    """(place, tensor or node) for each one in `values`; elements share a place, as in "['losses'][*]"."""
    seen, ahead = {}, deque([("", values)])  # what was seen is held: else its id could be another's
    while ahead:
        place, value = ahead.popleft()  # the shortest way to a tensor names its place
        if id(value) in seen or isinstance(value, _PLAIN):
            continue
        seen[id(value)] = value
        if isinstance(value, Tensor):
            yield place or "(the value)", value
            if value.is_leaf and value.grad is not None:
                ahead.append((f"{place}.grad", value.grad))
        elif isinstance(value, torch.autograd.graph.Node):
            yield place or "(the value)", value
        else:
            ahead += [(place + name, child) for name, child in _children(value)]


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]" if isinstance(key, str) else "[*]", child) for key, child in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset | deque):
        names = getattr(value, "_fields", None) or ("[*]",) * len(value)
        yield from ((name if name == "[*]" else f".{name}", child) for name, child in zip(names, value, strict=False))
    elif isinstance(value, types.FunctionType):
        yield from zip((f".{name}" for name in value.__code__.co_freevars), _contents(value), strict=True)
    elif isinstance(value, types.MethodType | partial):
        named = ("__self__", "func", "args", "keywords")
        yield from ((f".{name}", getattr(value, name)) for name in named if hasattr(value, name))
    else:
        yield from _attributes(value)


def _contents(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield None


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object has of its own: properties are not run."""
    attributes = dict(getattr(value, "__dict__", None) or {})
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if isinstance(kind.__dict__.get(name), types.MemberDescriptorType) and hasattr(value, name):
                attributes[name] = getattr(value, name)
    for name, child in attributes.items():
        if isinstance(value, nn.Module) and name in ("_parameters", "_buffers", "_modules"):
            yield from ((f".{key}", part) for key, part in child.items())
        else:
            yield f".{name}", child


# ------------------------------------------------------------------------------------------------------- what it weighs


def _weigh(roots: list, known: dict[int, torch.UntypedStorage]) -> Held:
    nodes, own, saved, parameters = graph(roots), {}, {}, {}
    for tensor in (root for root in roots if isinstance(root, Tensor)):
        (parameters if isinstance(tensor, nn.Parameter) else own).update(_storages(tensor))
    for node in nodes:
        for kept in _torch.saved_by(node):  # a tensor; or whatever a hook has made of it
            for tensor in [kept] if type(kept) is Tensor else [t for _, t in places(kept) if isinstance(t, Tensor)]:
                saved |= _storages(tensor)
        if isinstance(leaf := getattr(node, "variable", None), nn.Parameter):
            parameters |= _storages(leaf)
    without = known | parameters
    return Held(len(nodes), _bytes(saved, without), _bytes(saved | own, without))


def _known(beside: Any) -> dict[int, torch.UntypedStorage]:
    return {key: each for _, t in places(beside) if isinstance(t, Tensor) for key, each in _storages(t).items()}


def _storages(tensor: Tensor) -> dict[int, torch.UntypedStorage]:
    """The storages of a tensor by id; of a sparse or wrapping one those of the tensors that it is made of."""
    if hasattr(tensor, "__tensor_flatten__"):
        parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    elif tensor.layout is torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout is not torch.strided:
        parts = []
    else:
        storage = tensor.untyped_storage()
        return {id(storage): storage}
    return {key: storage for part in parts for key, storage in _storages(part).items()}


def _bytes(storages: dict[int, torch.UntypedStorage], without: dict[int, torch.UntypedStorage]) -> int:
    return sum(storage.nbytes() for key, storage in storages.items() if key not in without)
