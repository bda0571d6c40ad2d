"""Measure lab19: one archive, predicted while the card is as late as it may be, and in other orders it may choose."""

import gc
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from breakfix.contract import Contract, describe, expect, function
from breakfix.probes import _torch
from breakfix.probes.pinned import HostStats
from breakfix.probes.streams import ORDERS, LateCard

SIDE, TISSUES, BATCH, BATCHES = 24, 4, 8, 40
LAST = 3  # scans in the last batch
MEAN, STD = 0.45, 0.22
KIB = 1024
PINNED_KIB, CARD_KIB = 1100, 1400
REAL = ("as it comes", "copies late", "kernels late")  # orders on a card that is there
CYCLES = 20_000_000  # by which something is late there: about 10 ms
REMEMBERED = 12  # races told in evidence


@dataclass(frozen=True)
class Inputs:
    """The weights of the model, and the scans [N, 1, SIDE, SIDE] in batches."""

    weights: dict[str, Tensor]
    batches: list[Tensor]


class Net(nn.Module):
    """The model that the subject gets: it tells `before` and `after` of every call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, TISSUES, 3, padding=1)

    def forward(self, scans: Tensor) -> Tensor:
        return self.last(self.first(scans).relu())


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(p.shape, generator=g) / 2 for name, p in Net().named_parameters()}
    return Inputs(weights, [torch.rand(n, 1, SIDE, SIDE, generator=g) + 0.2 * i for i, n in enumerate(sizes())])


def sizes() -> list[int]:
    """Scans in each batch."""
    return [BATCH] * (BATCHES - 1) + [LAST]


def measure(subject, seed: int, device: torch.device) -> dict:
    predict = function(subject, "predict(model, batches, device) -> Tensor")
    given = inputs(seed)
    evidence = _on_the_cpu(predict, given)
    for order in ORDERS:
        evidence |= {f"{order}.{key}": value for key, value in modelled(subject, predict, given, order).items()}
    for order in REAL if device.type == "cuda" else ():
        evidence |= {f"{order}.{key}": value for key, value in _real(predict, given, order).items()}
    wrong = np.array([evidence[f"{order}.wrong"] for order in ORDERS], dtype=np.float64)
    return evidence | {"wrong": wrong, "outcome": _outcome(evidence), "copied.pinned": _pinned_kib_of_copies()}


def _outcome(evidence: dict) -> str:
    """What a person sees of the late run."""
    if evidence["late.raised"]:
        return "a device-side assert or another exception"
    return "wrong values, and no error" if evidence["late.wrong"] else "the right values"


def _pinned_kib_of_copies() -> float:
    """KiB pinned by ten copies of 36 KiB to the host that are not waited for and kept."""
    gc.collect()
    with LateCard() as card:
        source = torch.zeros(9 * KIB, device=card.device)
        kept = [source.to("cpu", non_blocking=True) for _ in range(10)]
        return len(kept) and card.pinning.held / KIB


def model_of(given: Inputs) -> Net:
    model = Net()
    model.load_state_dict(given.weights)
    return model.eval()


def reference(given: Inputs) -> Tensor:
    """The maps of all scans in float64 [N, TISSUES, SIDE, SIDE]."""
    model = model_of(given).double()
    with torch.no_grad():
        return torch.cat([model((batch.double() - MEAN) / STD) for batch in given.batches])


# ----------------------------------------------------------------------------------------------- what is seen of a run


@dataclass
class Calls:
    """The calls of the model in a run: how many scans each got, and what is done before and after it."""

    sizes: list[int] = field(default_factory=list)
    before: Callable[[int], None] = lambda number: None
    after: Callable[[], None] = lambda: None

    def watch(self, model: nn.Module) -> nn.Module:
        model.register_forward_pre_hook(self._before)
        model.register_forward_hook(lambda *_: self.after())
        return model

    def _before(self, module: nn.Module, arguments: tuple) -> None:
        self.before(len(self.sizes))
        self.sizes.append(len(arguments[0]))


@contextmanager
def _trouble(found: dict) -> Iterator[None]:
    """Go on after an exception of any type, and tell its type."""
    try:
        yield
    except Contract:
        raise
    except Exception as error:
        found |= {"raised": type(error).__name__, "told": str(error)[:300]}


@contextmanager
def _threads_counted(found: dict) -> Iterator[None]:
    """How many threads are started: what another thread asks of the card, the model of it does not see."""
    start, found["threads"] = threading.Thread.start, 0

    def counted(thread: threading.Thread) -> None:
        found["threads"] += 1
        start(thread)

    with mock.patch.object(threading.Thread, "start", counted):
        yield


def _compared(maps: Tensor | None, given: Inputs) -> dict:
    """How many batches have wrong maps, and how wrong the worst is."""
    wanted, size = reference(given), [len(b) for b in given.batches]
    if maps is None or maps.shape != wanted.shape:
        return {"wrong": len(size), "error": math.nan, "shape": [] if maps is None else list(maps.shape)}
    pairs = zip(maps.double().split(size), wanted.split(size), strict=True)
    worst = torch.stack([(a - b).abs().max() / b.abs().max() for a, b in pairs])
    return {"wrong": int((~(worst < 1e-2)).sum()), "error": float(worst.max()), "shape": list(maps.shape)}


def _fits(maps) -> Tensor:
    fits = isinstance(maps, Tensor) and maps.device.type == "cpu" and maps.is_floating_point()
    expect(fits, "predict", wanted="the maps of all scans, on the CPU", got=describe(maps))
    return maps.detach()


def _on_the_cpu(predict: Callable, given: Inputs) -> dict:
    """A machine without a card."""
    found, calls, maps = {"raised": ""}, Calls(), None
    with _trouble(found):
        model, batches = calls.watch(model_of(given)), iter([b.clone() for b in given.batches])
        maps = _fits(predict(model, batches, torch.device("cpu")))
    return {f"cpu.{key}": value for key, value in (found | _compared(maps, given) | {"sizes": calls.sizes}).items()}


# ------------------------------------------------------------------------------------------- on a card that is modelled


def modelled(subject, predict: Callable, given: Inputs, order: str) -> dict:
    gc.collect()
    found, calls, maps = {"raised": "", "told": ""}, Calls(), None
    where: dict[int, int] = {}  # the address of pinned memory: the batch that was there last
    working: list[int] = []  # the number of the call that is going on

    def label(what: str, memory: set[int]) -> tuple[str, int] | None:
        if working:
            return "work", working[0]
        known = [where[pointer] for pointer in memory if pointer in where]
        return ("copy", known[0]) if what == "copy to the card" and known else None

    with LateCard(order, modules=[subject]) as card:
        card.label, calls.before, calls.after = label, working.append, working.clear
        model = calls.watch(card.put(model_of(given)))
        with _trouble(found), _threads_counted(found):
            maps = _fits(predict(model, _pinned(given.batches, where), card.device))
            maps = card.host_reads(maps)
        found |= {"pinned_kib": card.pinning.held_peak / KIB, "card_kib": card.reserved / KIB}
    told = list(dict.fromkeys(map(str, card.races)))
    found |= {"sizes": calls.sizes, "races": len(card.races), "race_lines": told[:REMEMBERED]}
    return found | _compared(maps, given) | _order_of(card.tasks, len(given.batches))


def _pinned(batches: list[Tensor], where: dict[int, int]) -> Iterator[Tensor]:
    """Each batch in pinned memory of its own, made when it is asked for."""
    for number, batch in enumerate(batches):
        pinned = batch.pin_memory()
        where[pinned.data_ptr()] = number
        yield pinned
        del pinned


def _order_of(tasks: list, batches: int) -> dict:
    """Of how many batches the copy may run while the one before is worked on; before how many the host did not wait."""
    work, copies = (
        {k: [t for t in tasks if t.label == (kind, k)] for k in range(batches)} for kind in ("work", "copy")
    )
    beside = [any(c.overlaps(w) for c in copies[k] for w in work[k - 1]) for k in range(1, batches)]
    ahead = [
        bool(work[k] and work[k - 1]) and work[k][0].host_after.get(work[k - 1][-1].stream, -1) < work[k - 1][-1].number
        for k in range(1, batches)
    ]
    return {"overlapping": sum(beside) / len(beside), "launched_ahead": sum(ahead) / len(ahead)}


# -------------------------------------------------------------------------------- on a card that is there: not run yet


class _Delayed(TorchFunctionMode):
    """Puts a kernel that does nothing for a while before every copy between host and card, on its stream."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (Tensor.to, Tensor.cuda, Tensor.cpu, Tensor.copy_):
            _torch.sleep_on_stream(CYCLES)
        return func(*args, **(kwargs or {}))


def _real(predict: Callable, given: Inputs, order: str) -> dict:
    found, calls, maps = {"raised": "", "told": ""}, Calls(), None
    torch.backends.cudnn.allow_tf32 = False
    model, ends, ahead = calls.watch(model_of(given).cuda()), [], []

    def before(number: int) -> None:
        ahead.extend([not ends[-1].query()] if ends else [])
        if order == "kernels late":
            _torch.sleep_on_stream(CYCLES)

    def after() -> None:
        ends.append(torch.cuda.Event())
        ends[-1].record()

    calls.before, calls.after = before, after
    torch.cuda.reset_peak_memory_stats()
    pinned, held = HostStats(), torch.cuda.memory_allocated()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with (
        torch.profiler.profile(activities=activities) as profile,
        _Delayed() if order == "copies late" else nullcontext(),
    ):
        with _trouble(found):
            maps = _fits(predict(model, (b.pin_memory() for b in given.batches), torch.device("cuda"))).clone()
        torch.cuda.synchronize()
    card = torch.cuda.max_memory_allocated() - held
    found |= {"pinned_kib": pinned.held_peak / KIB, "card_kib": card / KIB, "sizes": calls.sizes}
    found |= {"overlapping": _copies_beside_kernels(profile), "launched_ahead": sum(ahead) / max(len(ahead), 1)}
    return found | _compared(maps, given)


def _copies_beside_kernels(profile) -> float:
    """The share of copies to the card, but for the first, during which a kernel ran."""
    on_card = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    copies = sorted((e.time_range for e in on_card if "HtoD" in e.name), key=lambda t: t.start)[1:]
    kernels = [e.time_range for e in on_card if "Mem" not in e.name]
    beside = [any(k.start < c.end and c.start < k.end for k in kernels) for c in copies]
    return sum(beside) / max(len(beside), 1)
