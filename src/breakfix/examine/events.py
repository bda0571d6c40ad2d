"""What happens in a script, told to probes; and the guard that keeps them from disturbing it.

A probe that raises is taken off and its name goes into the report: the script never hears of it. Probes run without
gradients and outside of the modes that a script has entered, and their time is counted.
"""

import threading
import time
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from breakfix.examine.findings import Finding
from breakfix.examine.lines import Line
from breakfix.probes import _torch

WALKS = 8  # of the graphs behind one line's backward(): then nothing new is expected there
EARLY, EVERY_S = (10, 100), 30.0  # steps, seconds: when a record is left on the way
MOST_WALKS = 100  # before their cost is asked for
EVENTS = (
    "constructed", "called", "backward_begins", "backward_ended", "step_begins", "step_ended", "loaded",
    "clipped", "scaled", "unscaling", "scaler_steps", "scaler_updated", "sampled",
)  # fmt: skip


class Probe:
    """An instrument: it overrides the events it wants, and says at the end what it has found."""

    name = ""

    def __init__(self, watch: "Watch"):
        self.watch = watch

    def findings(self) -> list[Finding]:
        """What it has found so far; asked at the end, and now and then before, in case the end never comes."""
        return []

    def figures(self) -> dict[str, Any]:
        """Numbers for the report that are no finding."""
        return {}


class Backward:
    """One call of backward(): its tensors, its line, and the graph behind it where that is worth a walk."""

    def __init__(self, tensors: list[Tensor], line: Line, number: int, walk: bool):
        self.tensors, self.line, self.number = tensors, line, number
        self.nodes = self.leaves = None  # None: not looked at
        if walk:
            self.nodes = self.look()
            self.leaves = [node.variable for node in self.nodes if hasattr(node, "variable")]

    def look(self) -> list:
        """Walk the graph, whether or not its line is new."""
        return graph_of(self.tensors)

    @property
    def first_look(self) -> bool:
        return self.nodes is not None


def graph_of(tensors: list[Tensor]) -> list:
    """The nodes behind tensors, each once."""
    seen, ahead = {}, [t.grad_fn for t in tensors]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen[node] = None
            ahead += [before for before, _ in node.next_functions]
    return list(seen)


class Aside:
    """A context that costs some microseconds: it is entered several times per step."""

    __slots__ = ("functions", "grad", "modes", "started", "watch")

    def __init__(self, watch: "Watch"):
        self.watch, self.started = watch, time.perf_counter()

    def __enter__(self) -> None:
        self.watch.busy.on = True
        self.grad = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        self.functions = _torch.no_function_modes()
        self.functions.__enter__()
        self.modes = _torch.no_modes() if _torch.has_modes() else None
        if self.modes:
            self.modes.__enter__()

    def __exit__(self, *error) -> None:
        if self.modes:
            self.modes.__exit__(*error)
        self.functions.__exit__(*error)
        torch.set_grad_enabled(self.grad)
        self.watch.busy.on = False
        self.watch.seconds += time.perf_counter() - self.started


class Watch:
    """Tells each event to the probes that want it."""

    def __init__(self, kinds: list[type[Probe]]):
        self.kinds = kinds
        self.flush = lambda: None
        self.attached_in = 0.0  # seconds
        self.begin()

    def begin(self) -> None:
        """Start with probes that know nothing: at first, and in a process that was forked."""
        self.probes = [kind(self) for kind in self.kinds]
        self.off: dict[str, str] = {}
        self.seconds = 0.0
        self.started = time.perf_counter()
        self.steps, self.backwards, self.root_calls = 0, 0, 0
        self.sites: Counter[tuple[Line, int]] = Counter()
        self._walked_at: dict[tuple[Line, int], int] = {}
        self.latest_root, self.walks = 0, 0
        self.wanted: set[int] = set()  # passes that a probe wants to have walked, by number
        self.rank: str | None = None
        self.world = 0
        self._flushed = self.started
        self.busy = threading.local()
        self._readers = [p for p in self.probes if hasattr(p, "note")]
        self._listeners = {
            event: [(p, getattr(p, event)) for p in self.probes if hasattr(type(p), event)] for event in EVENTS
        }

    def quiet(self) -> bool:
        """True where an event must not be told: inside a compiled region, inside a probe, in a CUDA graph's capture."""
        if torch.compiler.is_compiling() or getattr(self.busy, "on", False):
            return True
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    def tell(self, event: str, *what: Any) -> None:
        """Tell an event to whoever listens."""
        if self._listeners[event]:
            with self.aside():
                for probe, listener in self._listeners[event]:
                    self._try(probe, listener, *what)

    def aside(self) -> "Aside":
        """Within it time counts as the probes', and what they do is no event, has no gradient, and no mode sees it."""
        return Aside(self)

    def guarded(self, name: str, call, *what: Any) -> Any:
        """What a call returns that belongs to no probe; None where it raises, which the report tells."""
        with self.aside():
            try:
                return call(*what)
            except Exception as error:
                self.off[name] = f"{type(error).__name__}: {error}"[:200]
                return None

    def note_read(self, tensor: Tensor, frame) -> None:
        """A value is read. It happens often, so that it goes to few and past the rest of the machinery."""
        for probe in self._readers:
            self._try(probe, probe.note, tensor, frame)

    def backward(self, tensors: list[Tensor], line: Line) -> Backward:
        """The event of a backward() that begins; its graph is walked while its line is new, then rarely."""
        self.backwards += 1
        site = line, self.latest_root  # one line may train many models
        self.sites[site] += 1
        times, anew = self.sites[site], self.steps <= 2 * WALKS and self._walked_at.get(site) != self.steps
        self._walked_at[site] = self.steps  # the first pass after an update is where stale gradients show
        walk = self.backwards in self.wanted or times <= WALKS or anew or times & (times - 1) == 0
        self.walks += walk
        return Backward(tensors, line, self.backwards, walk and (self.walks <= MOST_WALKS or not self.is_dear()))

    def is_dear(self) -> bool:
        """True where the probes have taken more than their share of the run, so that they should look more rarely."""
        return self.seconds > 0.25 + 0.05 * (time.perf_counter() - self.started)

    def now_and_then(self) -> None:
        """Leave a record on the way, for a process that will be killed."""
        if self.steps in EARLY or time.perf_counter() - self._flushed > EVERY_S:
            self._flushed = time.perf_counter()
            self.flush()

    def ask(self, name: str) -> list[tuple[Probe, Any]]:
        """What each probe answers to a question without arguments."""
        with self.aside():
            return [(p, self._try(p, getattr(p, name))) for p in self.probes if p.name not in self.off]

    def _try(self, probe: Probe, call, *what):
        if probe.name in self.off:
            return None
        try:
            return call(*what)
        except Exception as error:
            self.off[probe.name] = f"{type(error).__name__}: {error}"[:200]
            return None
