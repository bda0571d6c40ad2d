"""May a candidate replace what runs today: the same answers, in time, and for as long as it runs.

    report = gate(model, onnx_callable("model.onnx"), {"6 tokens": (six, photo), "20 tokens": (twenty, photo)})
    print(report.passed, report.findings)

Every request is answered by both sides, again and again until there have been as many runs as wanted. Shape and dtype
come first, then values by probes.parity; nan belongs where the reference has it. Latency is the median of calls of both
sides in turn, for each shape of request. Memory is counted in tensors alive; the resident size is shown beside it.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from breakfix.probes.memory import resident_bytes
from breakfix.probes.parity import compare, leaves

WARM = 100  # runs that a cache has to fill
SAMPLES = 10  # how often memory is looked at after that
SHAPES = 32  # how many shapes are timed at most

Step = Callable[[int, int, str], None]


class BadReference(Exception):
    """The reference does not answer one of the requests; the message says which and why."""


@dataclass(frozen=True)
class Limits:
    """What a candidate may differ by, and how much is tried."""

    tolerance: float | None = None  # of parity.distance(); None: parity.TOLERANCE of the dtype
    ratio: float = 1.2  # of the typical call's time to the reference's
    runs: int = 1000  # at least; each request comes once in any case
    pairs: int = 30  # timed calls of each side, for each shape


@dataclass(frozen=True)
class Finding:
    """A reason not to release: where it was seen first, what was seen there, and in how many runs it was."""

    reason: str  # shape, dtype, value, raises, input, memory or latency
    where: str
    what: str
    count: int = 1


@dataclass(frozen=True)
class Latency:
    """The median time in seconds of a call with requests of one shape, on both sides."""

    shape: str
    reference: float
    candidate: float

    @property
    def ratio(self) -> float:
        return self.candidate / self.reference if self.reference else math.inf


@dataclass(frozen=True)
class Memory:
    """What there was after so many runs: tensors that somebody holds, and bytes of the process and of the card."""

    run: int
    tensors: int
    resident: int
    cuda: int


@dataclass(frozen=True)
class Report:
    """All that the gate has seen."""

    limits: Limits
    requests: int
    runs: int
    findings: tuple[Finding, ...] = ()
    latencies: tuple[Latency, ...] = ()
    memory: tuple[Memory, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be seen

    @property
    def passed(self) -> bool:
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """A dict for json.dumps."""
        ratios = [{**asdict(latency), "ratio": _finite(latency.ratio)} for latency in self.latencies]
        return {"passed": self.passed, **asdict(self), "latencies": ratios}


def gate(
    reference: Callable,
    candidate: Callable,
    requests: Mapping[str, Any],
    clock: Callable[[], float] = time.perf_counter,
    limits: Limits | None = None,
    on_step: Step = lambda done, total, what: None,
) -> Report:
    """Put a candidate to the gate. Raises BadReference; what the candidate raises is a finding.

    A request is a tuple (positional arguments), a dict (keywords) or one value. `clock` returns seconds, and waits for
    the card if there is one. `on_step(done, total, what)` follows the progress.
    """
    trial = _Trial(reference, candidate, requests, clock, limits or Limits(), on_step)
    with torch.no_grad():
        trial.replay()
        if "raises" not in trial.findings:
            trial.compare_times()
    return trial.report()


class _Trial:
    """One candidate beside the reference, and what has been seen of it so far."""

    def __init__(self, reference, candidate, requests, clock, limits: Limits, on_step: Step):
        self.reference, self.candidate, self.requests = reference, candidate, requests
        self.clock, self.limits, self.on_step = clock, limits, on_step
        self.runs = max(limits.runs, len(requests))
        self.findings: dict[str, Finding] = {}
        self.latencies: list[Latency] = []
        self.memory: list[Memory] = []

    def report(self) -> Report:
        notes = tuple(_notes(self.requests, self.runs))
        found = (tuple(self.findings.values()), tuple(self.latencies), tuple(self.memory))
        return Report(self.limits, len(self.requests), self.runs, *found, notes)

    def find(self, reason: str, where: str, what: str) -> None:
        known = self.findings.get(reason)
        self.findings[reason] = replace(known, count=known.count + 1) if known else Finding(reason, where, what)

    def replay(self) -> None:
        """Answer every request on both sides, round after round."""
        looks = set(_looks(self.runs))
        for run, (name, request) in enumerate(islice(cycle(self.requests.items()), self.runs), 1):
            self.answer(name, request)
            if run in looks:
                self.memory.append(_memory(run))
            self.on_step(run, self.runs, "answers")
        more = self.memory[-1].tensors - self.memory[0].tensors
        if more > 0:
            self.find("memory", f"runs {self.memory[0].run} to {self.runs}", f"{more} more tensors alive")

    def answer(self, name: str, request: Any) -> None:
        want = self.wanted(name, request)
        given = _clone(request)
        try:
            got = _call(self.candidate, given)
        except Exception as error:
            self.find("raises", name, f"{type(error).__name__}: {error}")
            return
        if not _untouched(given, request):
            self.find("input", name, "the request was written to")
        for reason, where, what in _differences(name, got, want, self.limits.tolerance):
            self.find(reason, where, what)

    def wanted(self, name: str, request: Any) -> Any:
        given = _clone(request)
        try:
            answer = _call(self.reference, given)
        except Exception as error:
            raise BadReference(f"the reference raises for {name}: {type(error).__name__}: {error}") from error
        if not _untouched(given, request):
            raise BadReference(f"the reference writes into {name}; it can be no measure then")
        return answer

    def compare_times(self) -> None:
        """The median of calls in turn, for each shape; the slowest ratio decides."""
        shapes = _one_of_each(self.requests)
        for done, (shape, request) in enumerate(shapes.items(), 1):
            sides = self.times(request)
            self.latencies.append(Latency(shape, *map(statistics.median, sides)))
            self.on_step(done, len(shapes), "times")
        slow = [latency for latency in self.latencies if not latency.candidate <= self.limits.ratio * latency.reference]
        for latency in sorted(slow, key=lambda latency: -latency.ratio):
            self.find("latency", latency.shape, f"{latency.ratio:.2f} times as long, {self.limits.ratio:g} at most")

    def times(self, request: Any) -> tuple[list[float], list[float]]:
        """Seconds of both sides, called in turn; who comes first alternates."""
        ours, theirs = [], []
        sides = [(self.reference, ours), (self.candidate, theirs)]
        for _ in range(self.limits.pairs):
            for model, times in sides:
                given = _clone(request)
                begin = self.clock()
                _call(model, given)
                times.append(self.clock() - begin)
            sides.reverse()
        return ours, theirs


# ------------------------------------------------------------------------------------------------------------- answers


def _differences(name: str, got: Any, want: Any, tolerance: float | None) -> Iterator[tuple[str, str, str]]:
    """Reason, place and what was seen, for each output that is not as wanted."""
    got, want = _shared_nan_filled(leaves(got), leaves(want))
    for difference in compare(lambda: want, lambda: got, {name: ()}, tolerance):
        reason = {"outputs": "shape", "nan": "value"}.get(difference.what, difference.what)
        place = f"{name}, output {difference.output}" if difference.output else name
        what = "" if difference.what == "value" else f"{difference.what} "
        yield reason, place, f"{what}{difference.got}, wanted {difference.want}"


def _shared_nan_filled(got: list, want: list) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both by name, with 0 where both are nan: there the candidate is right."""
    theirs, ours = dict(got), dict(want)
    pairs = [(name, name) for name in ours] if theirs.keys() == ours.keys() else zip(theirs, ours, strict=False)
    for mine, wanted in pairs:
        shared = _shared_nan(theirs[mine], ours[wanted])
        if shared is not None:
            theirs[mine], ours[wanted] = _filled(theirs[mine], shared), _filled(ours[wanted], shared)
    return theirs, ours


def _shared_nan(got: Any, want: Any) -> np.ndarray | None:
    """Where both are nan; None if that is nowhere, or cannot be said."""
    values = [value.detach().cpu() if isinstance(value, Tensor) else value for value in (got, want)]
    if not all(hasattr(value, "shape") and _is_float(value) for value in values) or values[0].shape != values[1].shape:
        return None
    shared = np.logical_and(*(np.asarray(value != value) for value in values))
    return shared if shared.any() else None


def _is_float(value: Any) -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind == "f"


def _filled(value: Any, where: np.ndarray) -> Any:
    if isinstance(value, Tensor):
        return value.masked_fill(torch.from_numpy(where).to(value.device), 0.0)
    return np.where(where, value.dtype.type(0), value)


# ------------------------------------------------------------------------------------------------------------ requests


def _call(function: Callable, request: Any) -> Any:
    if isinstance(request, Mapping):
        return function(**request)
    return function(*request) if isinstance(request, tuple) else function(request)


def _clone(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _clone(child) for key, child in value.items()}
    return type(value)(map(_clone, value)) if type(value) in (list, tuple) else value


def _untouched(given: Any, request: Any) -> bool:
    """Whether the tensors of a request that was handed out are what they were; nan is like nan."""
    pairs = zip(leaves(given), leaves(request), strict=False)
    return all(_same(mine, wanted) for (_, mine), (_, wanted) in pairs if isinstance(wanted, Tensor))


def _same(got: Tensor, want: Tensor) -> bool:
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    return torch.equal(got, want) or bool(((got == want) | ((got != got) & (want != want))).all())


def _one_of_each(requests: Mapping[str, Any]) -> dict[str, Any]:
    """A request of each shape, at most SHAPES of them, spread over all there are."""
    shapes = {shape_of(request): request for request in requests.values()}
    names = sorted(shapes, key=lambda shape: (len(shape), shape))
    if len(names) > SHAPES:
        names = [names[round(i * (len(names) - 1) / (SHAPES - 1))] for i in range(SHAPES)]
    return {name: shapes[name] for name in names}


def shape_of(request: Any) -> str:
    """What a request looks like: "[8, 32]", "tokens [2, 6], photo [2, 3, 16, 16]"."""
    shown = []
    for name, value in leaves(request):
        label = f"{name} " if name and not name.isdigit() else ""
        shown.append(f"{label}{list(value.shape)}" if isinstance(value, Tensor) else f"{label}{value!r}"[:40])
    return ", ".join(shown) or "nothing"


def _notes(requests: Mapping[str, Any], runs: int) -> Iterator[str]:
    shapes = {shape_of(request) for request in requests.values()}
    if len(shapes) == 1:
        yield f"all requests are {shapes.pop()}: what is wrong at another shape cannot be seen"
    elif len(shapes) > SHAPES:
        yield f"{SHAPES} of {len(shapes)} shapes were timed"
    if len(requests) <= WARM < runs:
        yield f"only {len(requests)} requests: what is kept of each new one cannot be told from a cache"


# -------------------------------------------------------------------------------------------------------------- memory


def _looks(runs: int) -> list[int]:
    """The runs after which memory is looked at: first when caches are full, last at the end."""
    first = min(WARM, max(1, runs // 2))
    return [first + round(i * (runs - first) / SAMPLES) for i in range(SAMPLES + 1)]


def _memory(run: int) -> Memory:
    gc.collect()
    tensors = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
    cuda = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0  # not run on a GPU yet
    return Memory(run, tensors, resident_bytes(), cuda)


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)
