"""Measure lab25: put candidates to the gate, good ones and one for each fault, and keep what it says of them.

Time is a clock that stands still but for what a call costs, so that a ratio of 1.19 is one of 1.19.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import Tensor

from breakfix.contract import describe, expect, function

SAMPLES, BANDS = 32, 8
TWINS = (2, 5)  # bands that in one case are alike but for a last digit: which is larger is decided by rounding
REASONS = ("shape", "dtype", "value", "raises", "input", "memory", "latency")
COUNTS = {"short": (80, 36, 24, 20, 20), "long": (600, 220, 90, 56, 34)}  # requests of each size, the usual one first
FAR, LEAD = 1e-9, 6e-4  # a sensor far off, against the others; by how much the strongest of two close bands leads
STRUCK, OFF = 10, 0.4  # requests that get a nan; by how much of the largest value a wrong band is off
ROW, LUCKLESS, LONGER, DRIFT = 1e-3, 0.12, 20, 1.2e-3  # seconds for a row; how many calls take longer; per call

Answer = tuple[Tensor, ...]
Model = Callable[[Tensor], Answer]


@dataclass(frozen=True)
class Case:
    """One candidate: what the gate must say of it, what else it may say, and on which traffic it is tried."""

    group: str
    wanted: str = ""  # a reason; "" for a candidate that may go out
    traffic: str = "short"
    kind: str = "loud"  # of its requests; see _requests
    dtype: torch.dtype = torch.float32
    may: tuple[str, ...] = ()
    tries: int = 1  # how often it is put to the gate, on other draws of its times


HALF, BRAIN = {"dtype": torch.float16}, {"dtype": torch.bfloat16}
LONG, UNLIKE = {"traffic": "long"}, {"may": ("value",)}
CASES = {
    "another order, float32": Case("good"),
    "another order, float16": Case("good", **HALF),
    "another order, bfloat16": Case("good", **BRAIN),
    "another order, twin bands": Case("good", kind="twins"),
    "another order, far sensors": Case("good", kind="far"),
    "another order, dead sensors": Case("good", kind="dead"),
    "wrong at one size": Case("answers", "value"),
    "nan once in a hundred": Case("answers", "value", **LONG),
    "a number for a dead sensor": Case("answers", "value", kind="dead"),
    "far sensors are silent": Case("answers", "value", kind="far"),
    "the other of two bands": Case("answers", "value", kind="close"),
    "filters in float16": Case("answers", "value"),
    "a band off, float16": Case("answers", "value", **HALF),
    "a band off, bfloat16": Case("answers", "value", **BRAIN),
    "one column for all": Case("outputs", "shape", **UNLIKE),
    "one output missing": Case("outputs", "shape", **UNLIKE),
    "float64 for float32": Case("outputs", "dtype", **UNLIKE),
    "float32 for float16": Case("outputs", "dtype", **HALF, **UNLIKE),
    "raises late": Case("failures", "raises", **LONG),
    "raises at one size": Case("failures", "raises"),
    "centres in place": Case("failures", "input", **UNLIKE),
    "a list that grows": Case("memory", "memory", **LONG),
    "a dict that grows": Case("memory", "memory", **LONG),
    "one in twenty kept": Case("memory", "memory", **LONG),
    "the last 64 kept": Case("memory", **LONG),
    "1.19 times": Case("latency"),
    "1.21 times": Case("latency", "latency"),
    "one call in 61 takes 50 times": Case("latency"),
    "cold at first": Case("latency"),
    "on a busy machine": Case("latency", tries=12),
    "slow beside a busy reference": Case("latency", "latency"),
    "on a machine that slows down": Case("latency"),
    "slow on a machine that speeds up": Case("latency", "latency"),
    "slow at one size": Case("latency", "latency"),
}


@dataclass(frozen=True)
class Given:
    """What the seed decides: filters, sizes, traffic, the order of the cases, and where each fault strikes."""

    filters: Tensor
    sizes: tuple[int, ...]  # rows of a request: the usual size first, the rarest last
    requests: dict[str, list[Tensor]]  # of each case
    order: list[str]
    struck: frozenset[float]  # the first samples of the requests that get a nan
    nth: int  # the call that raises
    odd: int  # a size, not the usual one
    band: int


def inputs(seed: int) -> Given:
    g = torch.Generator().manual_seed(seed)
    filters = torch.randn(SAMPLES, BANDS, generator=g) / SAMPLES**0.5
    sizes = tuple((torch.randperm(23, generator=g)[:5] + 2).tolist())
    kinds = sorted({(case.traffic, case.kind) for case in CASES.values()})
    traffic = {(length, kind): _requests(length, kind, sizes, filters, g) for length, kind in kinds}
    requests = {name: [x.to(case.dtype) for x in traffic[case.traffic, case.kind]] for name, case in CASES.items()}
    order = [list(CASES)[i] for i in torch.randperm(len(CASES), generator=g).tolist()]
    usual = [float(x[0, 0]) for x in traffic["long", "loud"] if len(x) == sizes[0]]
    struck = frozenset(usual[i] for i in torch.randperm(len(usual), generator=g)[:STRUCK].tolist())
    nth, odd, band = (_drawn(*span, g) for span in ((520, 940), (1, 5), (0, BANDS)))
    return Given(filters, sizes, requests, order, struck, nth, sizes[odd], band)


def _drawn(low: int, high: int, g: torch.Generator) -> int:
    return int(torch.randint(low, high, (1,), generator=g))


def _requests(length: str, kind: str, sizes: Sequence[int], filters: Tensor, g: torch.Generator) -> list[Tensor]:
    """Recordings [rows, SAMPLES] in the order in which they came; the first is of the usual size.

    One in ten is of a kind of its own. far: its sensors are a billion times weaker. dead: every other row is zero.
    close: the strongest band of each row leads the second by very little. twins: none; here the filters are alike.
    """
    rows = torch.tensor([size for size, n in zip(sizes, COUNTS[length], strict=True) for _ in range(n)])
    rows[1:] = rows[1:][torch.randperm(len(rows) - 1, generator=g)]
    found = list(torch.randn(int(rows.sum()), SAMPLES, generator=g).split(rows.tolist()))
    for i in range(5, len(found), 10):
        if kind == "far":
            found[i] = found[i] * FAR
        elif kind == "dead":
            found[i] = found[i] * (torch.arange(len(found[i])) % 2)[:, None]
        elif kind == "close":
            found[i] = _close(len(found[i]), filters, g)
    return [x.clone() for x in found]


def _close(rows: int, filters: Tensor, g: torch.Generator) -> Tensor:
    bands = 0.3 * torch.randn(rows, BANDS, generator=g)
    bands[:, torch.randperm(BANDS, generator=g)[:2]] = torch.tensor([2.0, 2.0 * (1 - LEAD)])
    return (bands.double() @ torch.linalg.pinv(filters.double())).float()


# -------------------------------------------------------------------------------------------------- the two functions


def _answer(x: Tensor, filters: Tensor) -> Answer:
    """Of each row its bands [rows, BANDS], and how far the largest stands out, the same for all of them."""
    bands = x @ filters
    size = bands.abs()
    return bands, (size.amax(1, keepdim=True) / size.mean(1, keepdim=True)).expand_as(bands)


def _reordered(x: Tensor, filters: Tensor) -> Answer:
    """The same, added up in another order."""
    half = SAMPLES // 2
    bands = x[:, half:] @ filters[half:] + x[:, :half] @ filters[:half]
    size = bands.abs()
    return bands, (size.amax(1, keepdim=True) * BANDS / size.sum(1, keepdim=True)).expand_as(bands)


def _candidate(name: str, given: Given, filters: Tensor) -> Model:
    """The candidate of a case that has a fault in its answers or in what it keeps; any other is the same reordered."""
    make = FAULTS.get(name)
    return make(given, filters) if make else lambda x: _reordered(x, filters)


def _at_one_size(given: Given, filters: Tensor) -> Model:
    def model(x: Tensor) -> Answer:
        bands, crest = _reordered(x, filters)
        return (bands.roll(1, 0) if len(x) == given.odd else bands), crest

    return model


def _rare_nan(given: Given, filters: Tensor) -> Model:
    def model(x: Tensor) -> Answer:
        bands, crest = _reordered(x, filters)
        if float(x[0, 0]) in given.struck:
            bands[-1, given.band] = math.nan
        return bands, crest

    return model


def _number_for_nan(given: Given, filters: Tensor) -> Model:
    def model(x: Tensor) -> Answer:
        bands, _ = _reordered(x, filters)
        size = bands.abs()
        return bands, (size.amax(1, keepdim=True) / (size.mean(1, keepdim=True) + 1e-12)).expand_as(bands)

    return model


def _silent(given: Given, filters: Tensor) -> Model:
    def model(x: Tensor) -> Answer:
        bands, crest = _reordered(x, filters)
        return torch.where(bands.abs() < 8 * FAR, 0.0, bands), crest

    return model


def _swapped(given: Given, filters: Tensor) -> Model:
    """Where two bands are close and stand out, each has the value of the other."""

    def model(x: Tensor) -> Answer:
        bands, crest = _reordered(x, filters)
        best = bands.topk(2)
        lead = 1 - best.values[:, 1:] / best.values[:, :1]
        close = (lead > LEAD / 2) & (lead < LEAD * 2)
        return torch.where(close, bands.scatter(1, best.indices, best.values.flip(1)), bands), crest

    return model


def _band_off(given: Given, filters: Tensor) -> Model:
    def model(x: Tensor) -> Answer:
        bands, crest = _reordered(x, filters)
        if len(x) == given.odd:
            bands[-1, given.band] += OFF * bands[-1].abs().max()
        return bands, crest

    return model


def _late(given: Given, filters: Tensor) -> Model:
    calls = count(1)

    def model(x: Tensor) -> Answer:
        if next(calls) == given.nth:
            raise Planted("the pool of workspaces is used up")
        return _reordered(x, filters)

    return model


def _refusing(given: Given, filters: Tensor) -> Model:
    def model(x: Tensor) -> Answer:
        if len(x) == given.odd:
            raise Planted(f"no kernel for {len(x)} rows")
        return _reordered(x, filters)

    return model


def _centring(given: Given, filters: Tensor) -> Model:
    def model(x: Tensor) -> Answer:
        found = _reordered(x, filters)
        if len(x) == given.odd:
            x[-1].sub_(x[-1].mean())
        return found

    return model


def _keeping(keep: Callable[[], Callable[[int, Tensor, Answer], object]]) -> Callable[[Given, Tensor], Model]:
    """A candidate that hands the number of the call, the request and the answer to what `keep` makes."""

    def make(given: Given, filters: Tensor) -> Model:
        kept, calls = keep(), count()

        def model(x: Tensor) -> Answer:
            found = _reordered(x, filters)
            kept(next(calls), x, found)
            return found

        return model

    return make


def _in_a_list() -> Callable[[int, Tensor, Answer], object]:
    kept: list = []
    return lambda call, x, found: kept.append(found)


def _in_a_dict() -> Callable[[int, Tensor, Answer], object]:
    """By what is in the request: the same request again takes no more room."""
    kept: dict = {}
    return lambda call, x, found: kept.update({float(x[0, 0]): x.clone()})


def _now_and_then() -> Callable[[int, Tensor, Answer], object]:
    kept: list = []
    return lambda call, x, found: None if call % 20 else kept.append(found[0][:1].clone())


def _the_last() -> Callable[[int, Tensor, Answer], object]:
    kept: deque = deque(maxlen=64)
    return lambda call, x, found: kept.append(found)


class Planted(LookupError):
    """What a candidate raises; nothing else does."""


def _then(change: Callable[[Answer], Answer]) -> Callable[[Given, Tensor], Model]:
    return lambda given, filters: lambda x: change(_reordered(x, filters))


FAULTS: dict[str, Callable[[Given, Tensor], Model]] = {
    "wrong at one size": _at_one_size,
    "nan once in a hundred": _rare_nan,
    "a number for a dead sensor": _number_for_nan,
    "far sensors are silent": _silent,
    "the other of two bands": _swapped,
    "filters in float16": lambda given, filters: lambda x: _reordered(x, filters.half().float()),
    "a band off, float16": _band_off,
    "a band off, bfloat16": _band_off,
    "one column for all": _then(lambda found: (found[0], found[1][:, :1])),
    "one output missing": _then(lambda found: found[:1]),
    "float64 for float32": _then(lambda found: tuple(t.double() for t in found)),
    "float32 for float16": _then(lambda found: tuple(t.float() for t in found)),
    "raises late": _late,
    "raises at one size": _refusing,
    "centres in place": _centring,
    "a list that grows": _keeping(_in_a_list),
    "a dict that grows": _keeping(_in_a_dict),
    "one in twenty kept": _keeping(_now_and_then),
    "the last 64 kept": _keeping(_the_last),
}


# ------------------------------------------------------------------------------------------------------------ the time


class Clock:
    """Seconds that only calls spend. With each of them the machine gets slower, or faster, by `drift`."""

    def __init__(self, drift: float):
        self.now, self.calls, self.drift = 0.0, 0, drift

    def spend(self, seconds: float) -> None:
        self.calls += 1
        self.now += seconds * math.exp(self.drift * min(self.calls, 6000))


Pace = Callable[[int, int], float]  # (which call, how many rows) to how many times as long it takes as the reference


def _steady(ratio: float) -> Pace:
    return lambda call, rows: ratio


def _busy(ratio: float, longer: float, rng: np.random.Generator) -> Pace:
    return lambda call, rows: ratio * (longer if rng.random() < LUCKLESS else 1.0)


def _cold(ratio: float) -> Pace:
    met: set[int] = set()

    def pace(call: int, rows: int) -> float:
        first = rows not in met
        met.add(rows)
        return ratio * (300 if first else 15 if call <= 20 else 1)

    return pace


def _paces(name: str, given: Given, rng: np.random.Generator) -> tuple[Pace, Pace, float]:
    """How long reference and candidate of a case take, and how the machine drifts."""
    even, phase = _steady(1.0), int(rng.integers(61))
    return {
        "1.19 times": (even, _steady(1.19), 0.0),
        "1.21 times": (even, _steady(1.21), 0.0),
        "one call in 61 takes 50 times": (even, lambda call, rows: 50.0 if call % 61 == phase else 1.0, 0.0),
        "cold at first": (even, _cold(1.1), 0.0),
        "on a busy machine": (_busy(1.0, LONGER, rng), _busy(1.1, LONGER, rng), 0.0),
        "slow beside a busy reference": (_busy(1.0, 2 * LONGER, rng), _steady(1.35), 0.0),
        "on a machine that slows down": (even, _steady(1.05), DRIFT),
        "slow on a machine that speeds up": (even, _steady(1.3), -DRIFT),
        "slow at one size": (even, lambda call, rows: 1.5 if rows == given.odd else 1.0, 0.0),
    }.get(name, (even, even, 0.0))


def _timed(model: Model, pace: Pace, clock: Clock) -> Model:
    calls = count(1)

    def call(x: Tensor) -> Answer:
        clock.spend(ROW * len(x) * pace(next(calls), len(x)))
        return model(x)

    return call


# --------------------------------------------------------------------------------------------------------- the verdicts


def put(name: str, given: Given, seed: int, device: torch.device, again: int = 0) -> tuple:
    """What a gate is given in one case: reference, candidate, requests and clock."""
    filters = given.filters.to(device, CASES[name].dtype, copy=True)
    if CASES[name].kind == "twins":
        filters[:, TWINS[1]] = filters[:, TWINS[0]] * (1 + 2**-23)
    rng = np.random.default_rng([seed, list(CASES).index(name), again])
    pace, other, drift = _paces(name, given, rng)
    clock = Clock(drift)
    reference = _timed(lambda x: _answer(x, filters), pace, clock)
    candidate = _timed(_candidate(name, given, filters), other, clock)
    return reference, candidate, [x.to(device, copy=True) for x in given.requests[name]], lambda: clock.now


def measure(subject, seed: int, device: torch.device) -> dict:
    gate = function(subject, "gate(reference, candidate, requests, clock) -> dict[str, str]")
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = False
    given, evidence = inputs(seed), {}
    for name in given.order:
        said = [_reasons(gate, put(name, given, seed, device, again)) for again in range(CASES[name].tries)]
        evidence[f"{name}.wanted"] = CASES[name].wanted or "go"
        evidence[f"{name}.reasons"] = sorted({reason for reasons, _ in said for reason in reasons})
        evidence[f"{name}.escaped"] = max(escaped for _, escaped in said)
    return evidence | _shares(evidence) | _alone(seed)


def _reasons(gate: Callable, given: tuple) -> tuple[list[str], str]:
    """The reasons that the gate names, or that the candidate's own error came out of it."""
    try:
        said = gate(*given)
    except Exception as error:
        if not any(isinstance(e, Planted) for e in _chain(error)):
            raise
        return [], type(error).__name__
    fits = isinstance(said, dict) and all(isinstance(text, str) and text.strip() for text in said.values())
    expect(fits, "gate", wanted="a dict of reasons, each with a sentence", got=describe(said))
    odd = [reason for reason in said if reason not in REASONS]
    expect(not odd, "gate", wanted=f"some of the reasons {', '.join(REASONS)}", got=", ".join(map(describe, odd)))
    return list(said), ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__


def right(name: str, reasons: Sequence[str], escaped: str) -> bool:
    """Whether a gate has judged one case as it should."""
    wanted = {CASES[name].wanted} - {""}
    return not escaped and wanted <= set(reasons) <= wanted | set(CASES[name].may)


def _shares(evidence: dict) -> dict:
    """How many candidates were judged rightly: in all, and of each kind in percent."""
    judged = {name: right(name, evidence[f"{name}.reasons"], evidence[f"{name}.escaped"]) for name in CASES}
    kinds = {"good": [name for name in CASES if not CASES[name].wanted]}
    for reason in ("value", "memory", "latency"):
        kinds[reason] = [name for name in CASES if CASES[name].wanted == reason]
    kinds["other"] = [n for n in CASES if CASES[n].wanted not in ("", "value", "memory", "latency")]
    shares = {f"share.{kind}": 100 * sum(judged[n] for n in names) / len(names) for kind, names in kinds.items()}
    return shares | {"judged.right": sum(judged.values())}


def _alone(seed: int) -> dict:
    """One function against itself on the busy machine, a thousand single shots."""
    rng = np.random.default_rng(seed)
    mine, other = (_busy(1.0, LONGER, rng) for _ in range(2))
    ratios = np.array([other(1, 1) / mine(1, 1) for _ in range(1000)])
    return {"alone.mean": float(ratios.mean()), "alone.refused": float((ratios > 1.2).mean())}
