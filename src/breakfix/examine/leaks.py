"""Autograd graphs that stay alive: how many nodes there are, counted now and then."""

import gc
import sys
import time
import weakref
from itertools import pairwise

from torch import Tensor, nn

from breakfix.examine.events import Backward, Probe
from breakfix.examine.findings import CERTAIN, Finding
from breakfix.examine.lines import Line, own_frame, own_line
from breakfix.probes.lineage import alive, graph

LOOKS = (4, 8, 100)  # backward passes after which is looked
SURE = 4  # passes later, if nodes have become more, once again
UNUSED = (8, 16, 32)  # calls of a model in evaluation, without a backward pass between them
NODE_BYTES = 700
MARK = "breakfix_seen"  # in the metadata of nodes that were in a graph looked at before
TOO_LONG = 0.3  # seconds of the processor: after a look that took as long there is one more


class Leaks(Probe):
    """Counts at the same place each time: what comes and goes within a step is the same there."""

    name = "leaks"

    def __init__(self, watch):
        super().__init__(watch)
        self.counts: list[tuple[int, int]] = []  # backward passes, nodes alive
        self.evaluated: list[tuple[int, int]] = []
        self.calls = self.again = 0
        self.training: Finding | None = None
        self.evaluation: Finding | None = None
        self.pending: list[weakref.ref] = []
        self.looks_left = 12
        self.first: dict[Line, int] = {}  # nodes of the first graph of a line

    def backward_ended(self, event: Backward) -> None:
        wanted = event.number in LOOKS or event.number == self.again
        if self.training or not wanted or not event.first_look or self.looks_left <= 0:
            return
        tensors, nodes = self._look()
        self.counts.append((event.number, nodes))
        rates = _rates(self.counts)[-2:]
        least = max(1.0, 0.2 * self._own_size(event))
        if rates and rates[-1] >= least:
            self.again = event.number + SURE
            self.watch.wanted.add(self.again)
        if len(rates) == 2 and min(rates) >= least:
            self.training = self._tell("backward pass", min(rates), tensors, event.line, event.number)

    def backward_begins(self, event: Backward) -> None:
        self.calls, self.evaluated = 0, []
        if self.pending and event.nodes:
            nodes = set(event.nodes)
            if any((t := ref()) is not None and t.grad_fn in nodes for ref in self.pending):
                self.evaluation = None  # it was for this backward pass that they were kept
            self.pending = []

    def called(self, module: nn.Module, inputs, grad: bool) -> None:
        if (module.training and self.watch.backwards) or self.evaluation or self.looks_left <= 0:
            return
        self.calls += 1
        if self.calls not in UNUSED:
            return
        tensors, nodes = self._look()
        self.evaluated.append((self.calls, nodes))
        rates = _rates(self.evaluated)
        if len(rates) == 2 and min(rates) >= 2:
            self.evaluation = self._tell("call without backward()", min(rates), tensors, own_line(), None)
            self.evaluation.lab = "" if self.watch.backwards else "lab07"  # nothing is trained here
            self.pending = [weakref.ref(t) for t in tensors[-50:]]

    def findings(self) -> list[Finding]:
        return [f for f in (self.training, self.evaluation) if f]

    def _own_size(self, event: Backward) -> int:
        """How many nodes a step makes: of a graph that holds older ones, as many as its first had."""
        inner = [node for node in event.nodes if node.next_functions]  # leaves' nodes are used again
        chained = any(MARK in node.metadata for node in inner)
        for node in inner:
            node.metadata[MARK] = True
        first = self.first.setdefault(event.line, len(event.nodes))
        return min(first, len(event.nodes)) if chained else len(event.nodes)

    def _look(self) -> tuple[list[Tensor], int]:
        started = time.thread_time()
        tensors = alive()
        nodes = len(graph(tensors))
        self.looks_left = min(self.looks_left - 1, 1 if time.thread_time() - started > TOO_LONG else 99)
        return tensors, nodes

    def _tell(self, each: str, rate: float, tensors: list[Tensor], line: Line, step: int | None) -> Finding:
        told = (
            f"{rate:.0f} nodes of autograd stay with each {each} (about {rate * NODE_BYTES / 1000:.0f} kB on the host)"
        )
        told += f"; {len(tensors)} tensors with a graph are alive"
        where = _holder(tensors)
        told += f", some of them in {where}" if where else ""
        return Finding(
            "graph-leak", CERTAIN, told, line, {"nodes": rate, "tensors": len(tensors), "held_by": where}, step
        )


def _rates(counts: list[tuple[int, int]]) -> list[float]:
    return [(n2 - n1) / (at2 - at1) for (at1, n1), (at2, n2) in pairwise(counts)]


def _holder(tensors: list[Tensor]) -> str:
    """The name of a variable or attribute of the person's that holds the most of them."""
    names, sample = _names(), tensors[-50:]
    alike, found = {id(t) for t in sample}, {}
    for holder in gc.get_referrers(*sample):  # one search of the whole heap
        if (name := names.get(id(holder))) and holder is not sample and holder is not tensors:
            values = holder.values() if isinstance(holder, dict) else holder if isinstance(holder, list | tuple) else ()
            found[name] = sum(id(value) in alike for value in values)
    if found:
        return max(found, key=found.get)
    named = [(len(graph([t])), names[id(t)]) for t in sample[-8:] if id(t) in names]
    return max(named)[1] if named else ""  # a chain that hangs on one tensor


def _names() -> dict[int, str]:
    """By id what the running frames' variables are called, and two levels of what is in them."""
    names: dict[int, str] = {}
    frame = own_frame(sys._getframe(1))
    while frame:
        local = frame.f_locals
        for name, value in list(local.items()):
            if name.startswith("__"):
                continue
            names.setdefault(id(value), name)
            for inner_name, inner in _parts(name, value):
                names.setdefault(id(inner), inner_name)
                for deeper_name, deeper in _parts(inner_name, inner):
                    names.setdefault(id(deeper), deeper_name)
        frame = own_frame(frame.f_back) if frame.f_back else None
    return names


def _parts(name: str, value) -> list[tuple[str, object]]:
    """The values of a dict, or the attributes of an object, each with what it is called."""
    if isinstance(value, dict):
        return [(f"{name}[{key!r}]", inner) for key, inner in list(value.items())[:200]]
    attributes = getattr(value, "__dict__", None)
    return (
        [(f"{name}.{key}", inner) for key, inner in list(attributes.items())[:200]] if type(attributes) is dict else []
    )
