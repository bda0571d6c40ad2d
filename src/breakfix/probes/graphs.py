"""What torch.compile makes of a function: its graphs, why each ends, why it compiled again, what runs outside of them.

    counter = Counter()  # or Counter("inductor"): count, then compile for real
    compiled = torch.compile(model, backend=counter)
    for batch in batches:
        compiled(batch)
    print(counter)
    print(operators(lambda: compiled(batch)))

Without a name the graphs run as they were captured, operator by operator: no compiler is needed, and capture is what
graph breaks and recompiles are about. `torch._dynamo.utils.counters["graph_break"]` knows nothing of a branch on a
tensor's value; the graphs themselves do.
"""

from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from breakfix.probes import _torch

RUNS = "compiled graph"  # the name of a graph's run in a trace


@dataclass
class Graph:
    """One graph that torch.compile captured."""

    ops: tuple[str, ...]
    broke: str  # why it ends before the function does; "" where it does not
    broke_at: str  # "train.py:32"; "" where it does not
    compile_id: str  # "1/0": function 1, its first compilation; "" where it is not torch.compile that made the graph
    runs: int = 0


@dataclass(frozen=True)
class Again:
    """A function that was compiled once more, and the guard that failed; or, with `gave_up`, runs eagerly since."""

    function: str
    reason: str
    gave_up: bool = False


@dataclass
class Counter:
    """A backend for torch.compile that counts, and hands each graph on to `backend`, by name, if there is one.

    `graphs` are those of the functions compiled with this counter. `again` is of the whole process, from now on.
    """

    backend: str = ""
    graphs: list[Graph] = field(default_factory=list)
    _known: dict = field(default_factory=dict, repr=False)

    def __post_init__(self):
        self._started = {key for key, _ in _torch.compilations()}

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
        ops = tuple(str(node.target) for node in gm.graph.nodes if node.op.startswith("call"))
        graph = Graph(ops, *_torch.graph_break(gm), _torch.compile_id(gm))
        self.graphs.append(graph)
        self._look()
        return self._counted(graph, _handed_on(self.backend, gm, example_inputs))

    @property
    def runs(self) -> int:
        """How many graphs have run, one that runs twice counted twice."""
        return sum(graph.runs for graph in self.graphs)

    @property
    def again(self) -> list[Again]:
        """Every compilation after a function's first, and every function that torch.compile gave up."""
        self._look()
        return [found for found in self._known.values() if found]

    @property
    def breaks(self) -> dict[tuple[str, str], int]:
        """(Where, why) to the number of graphs that end there."""
        return dict(Tally((g.broke_at, g.broke) for g in self.graphs if g.broke))

    def __str__(self) -> str:
        ops = sum(len(graph.ops) for graph in self.graphs)
        lines = [f"{len(self.graphs)} graphs of {ops} operators in all, run {self.runs} times"]
        lines += [f"  {n} x break at {at}: {why}" for (at, why), n in self.breaks.items()]
        told: dict[tuple[str, bool], list[str]] = {}
        for a in self.again:
            told.setdefault((a.function, a.gave_up), []).append(a.reason)
        for (function, gave_up), reasons in told.items():
            different = list(dict.fromkeys(reasons))
            what = "gave up" if gave_up else f"{len(reasons)} x compiled again"
            lines.append(f"  {what}: {function}: {'; '.join(different[:3])}{'; ...' * (len(different) > 3)}")
        return "\n".join(lines)

    def _look(self) -> None:
        """Take over what torch says of its compilations: it keeps the latest 64 only."""
        for key, told in _torch.compilations():
            if key not in self._started and key not in self._known:
                self._known[key] = _again(told)

    def _counted(self, graph: Graph, run: Callable) -> Callable:
        def counted(*arguments):
            graph.runs += 1
            with record_function(RUNS):
                return run(*arguments)

        return counted


@dataclass(frozen=True)
class Operators:
    """The operators that ran during a call, by name: inside a counter's graphs, and outside of any."""

    inside: dict[str, int]
    outside: dict[str, int]

    def __str__(self) -> str:
        names = ", ".join(f"{n} x {name}" for name, n in sorted(self.outside.items()))
        return f"{sum(self.inside.values())} operators in graphs, {sum(self.outside.values())} outside: {names or '-'}"


def operators(call: Callable[[], object]) -> Operators:
    """Which operators `call()` runs, as PyTorch's profiler sees them: in the graphs of a Counter and outside.

    What an operator calls is not counted beside it. A graph that a compiler made kernels of shows none inside.
    """
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    inside, outside = Tally(), Tally()
    for event in seen.events():
        above = _names_above(event)
        if _is_operator(event.name) and not any(map(_is_operator, above)):
            (inside if RUNS in above else outside)[event.name] += 1
    return Operators(dict(inside), dict(outside))


def _is_operator(name: str) -> bool:
    return "::" in name and not name.startswith("autograd::")


def _names_above(event) -> list[str]:
    names = []
    while (event := event.cpu_parent) is not None:
        names.append(event.name)
    return names


def _handed_on(backend: str, gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
    if not backend:
        return gm.forward
    return _torch.compile_backend(backend)(gm, example_inputs)


def _again(told: dict) -> Again | None:
    if told["failed"]:
        return Again(told["function"], told["failed"], gave_up=True)
    return Again(told["function"], told["recompiled"]) if told["recompiled"] else None
