"""Which collectives each rank issues, in which order, from which line; and the first place where two ranks part.

Ranks that part wait for each other, or take a loss for a gradient. Three ways to see it before it hangs:

    trace = collectives.trace()                     # before init_process_group
    dist.init_process_group(collectives.BACKEND)    # in place of "gloo" or "nccl"
    with trace:
        train()                                     # raises RanksPart on every rank, with the lines of all of them

    collectives.recorded()                          # this rank's calls so far, from PyTorch's own Flight Recorder

    print(collectives.first_parting([calls_of_rank_0, calls_of_rank_1]))

The traced group lets ranks meet before each collective: each says what it is about to call. Leaving the block says that
no more will come. So nobody waits for a rank that has ended, and two collectives that do not fit are never run.
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from breakfix.probes import _torch, traffic
from breakfix.probes.traffic import Collective

BACKEND = "traced"  # for init_process_group, once trace() has registered it
DEFAULT_GROUP = "0"
ENDED = "ended"
UNEVEN = frozenset({"scatter", "all_to_all"})  # what ranks put into these differs in shape, rightly
MISSING = "not known: not every rank came in time"
WIDTH, DIGEST = 512, 16  # bytes of what a rank says at a meeting, and of those the ones that must be equal
INSTALLED = f"{os.sep}site-packages{os.sep}"
OURS = (os.path.dirname(torch.__file__), os.path.dirname(__file__))


@dataclass(frozen=True)
class Call(Collective):
    """One collective as this rank issued it, and where."""

    shapes: tuple[tuple[int, ...], ...]  # of what it put in
    group: str  # the group's name; "0" is the default one's
    number: int  # in its group, from 1
    line: str  # "train.py:78 in train": the script's innermost; "" where no frame is known

    @property
    def signature(self) -> tuple:
        """What has to be the same on every rank of the group."""
        return (self.op, self.dtype, () if self.op in UNEVEN else self.shapes)

    def __str__(self) -> str:
        shapes = ", ".join(str(list(shape)) for shape in self.shapes)
        what = " ".join(filter(None, (self.op, self.dtype, shapes)))
        return f"{what}, {self.line}" if self.line else what


@dataclass(frozen=True)
class Parting:
    """The first collective of a group at which its ranks did not all call the same, and what each did there."""

    group: str
    number: int
    said: tuple[str, ...]  # by rank in the group

    def __str__(self) -> str:
        lines = (f"  rank {rank}: {said}" for rank, said in enumerate(self.said))
        return "\n".join([f"collective {self.number} of group {self.group}", *lines])


class RanksPart(RuntimeError):
    """The ranks of a group are not all about to call the same collective."""


# ------------------------------------------------------------------------------------------------------ as it happens


@dataclass(eq=False)
class Trace:
    """What this rank has called in every traced group, and where the ranks parted, if they did.

    As a context manager: leaving it tells the other ranks that no more will come.
    """

    wait_s: float
    calls: list[Call] = field(default_factory=list)
    parted: Parting | None = None
    groups: list["MeetingGroup"] = field(default_factory=list, repr=False)

    def __enter__(self) -> "Trace":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _) -> None:
        said = f"raised {kind.__name__}" if kind and not self.parted else ENDED  # of a parting all have heard
        meetings = [(group, group.leave(said)) for group in self.groups if not group.has_parted]
        for group, meeting in meetings:  # only now, as the others may leave the groups in another order
            group.compare(*meeting)


def trace(inner: dict[str, str] | None = None, wait_s: float = 60.0) -> Trace:
    """Register the backend "traced" and return the trace that its groups will fill; `inner` as in traffic.count().

    A rank that has not come to a meeting after `wait_s` seconds has parted too.
    """
    found = Trace(wait_s)
    traffic.register(BACKEND, MeetingGroup, inner, found)
    return found


class MeetingGroup(traffic.CountingGroup):
    """A process group whose ranks tell each other what they are about to call; sends and receives are left aside."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, timeout: timedelta, inner: dict[str, str], trace: Trace
    ):
        super().__init__(store, rank, size, timeout, inner, trace.calls)
        self.trace, self.number, self.has_parted = trace, 0, False
        patience = timedelta(seconds=trace.wait_s)
        self.meeting = dist.ProcessGroupGloo(dist.PrefixStore("meeting", store), rank, size, patience)
        trace.groups.append(self)

    def getBackendName(self) -> str:
        return BACKEND

    def note(self, op: str, tensors: list[Tensor], args: tuple) -> None:
        """Meet the others. Raises RanksPart on all of them unless all are about to call the same."""
        if op in traffic.POINT_TO_POINT:
            return
        if self.trace.parted:  # a rank that caught it and goes on must not wait for the others
            raise RanksPart(str(self.trace.parted))
        self.number += 1
        size = sum(t.numel() * t.element_size() for t in tensors)
        dtype = traffic.name_of(tensors[0].dtype) if tensors else ""
        shapes = tuple(tuple(t.shape) for t in tensors)
        call = Call(op, size, dtype, shapes, self.group_name, self.number, _line(_stack()))
        self.log.append(call)
        self.compare(*self._meet(repr(call.signature), str(call)))
        if self.trace.parted:
            raise RanksPart(str(self.trace.parted))

    def leave(self, said: str) -> tuple:
        """Tell the others that no more will come; does not wait for them."""
        self.number += 1
        return self._meet(said, said)

    def _meet(self, signature: str, said: str) -> tuple:
        """Send what this rank is about to call; what comes back, and the work to wait for."""
        digest = hashlib.blake2b(signature.encode(), digest_size=DIGEST).digest()
        mine = (digest + said.encode())[:WIDTH].ljust(WIDTH, b"\0")
        sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        everyone = [torch.zeros_like(sent) for _ in range(self.size())]
        return said, everyone, self.meeting.allgather([everyone], [sent])

    def compare(self, said: str, everyone: list[Tensor], work: Any) -> None:
        """Wait for the others; if they do not all say the same, keep what they said."""
        try:
            work.wait()
        except RuntimeError:  # one of them is gone, or does something else
            self._part(said if rank == self.rank() else MISSING for rank in range(self.size()))
            return
        heard = [bytes(t.tolist()) for t in everyone]
        if len({h[:DIGEST] for h in heard}) > 1:
            self._part(h[DIGEST:].rstrip(b"\0").decode(errors="replace") for h in heard)

    def _part(self, said: Iterable[str]) -> None:
        self.has_parted = True
        self.trace.parted = self.trace.parted or Parting(self.group_name, self.number, tuple(said))


# ---------------------------------------------------------------------------------------------------------- afterwards


def recorded() -> list[Call]:
    """What this rank has called so far, in every group of its own, from PyTorch's Flight Recorder.

    It needs no change to the script, and is on by default. It keeps the last 2000 (TORCH_FR_BUFFER_SIZE).
    """
    entries = _torch.flight_recorder_stacks()
    return [_as_call(e) for e in entries if not e["is_p2p"] and e["process_group"][0]]


def _as_call(entry: dict) -> Call:
    seen = traffic.as_collective(entry)
    shapes = tuple(map(tuple, entry["input_sizes"])) if seen.op != "barrier" else ()
    frames = ((f["filename"], f["line"], f["name"]) for f in entry.get("frames", ()))
    group, number = entry["process_group"][0], entry["collective_seq_id"]
    return Call(seen.op, seen.bytes, seen.dtype, shapes, group, number, _line(frames))


def first_parting(traces: Sequence[Iterable[Call]]) -> Parting | None:
    """The first place where the traces of all ranks part, group by group; None if they never do.

    A rank without a single call in a group is taken for no member of it, save of the default group.
    """
    by_rank = [list(calls) for calls in traces]
    for group in dict.fromkeys(call.group for calls in by_rank for call in calls):
        own = [[call for call in calls if call.group == group] for calls in by_rank]
        members = [calls for calls in own if calls or group == DEFAULT_GROUP]
        for at in range(max(map(len, members))):
            here = [calls[at] if at < len(calls) else None for calls in members]
            if len({call and call.signature for call in here}) > 1:
                return Parting(group, at + 1, tuple(str(call) if call else ENDED for call in here))
    return None


def _stack() -> Iterator[tuple[str, int, str]]:
    """(file, line, function) of every frame of this thread, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back


def _line(frames: Iterable[tuple[str, int, str]]) -> str:
    """The script's innermost frame, else a library's, as "train.py:78 in train"; torch and probes are left out."""
    others = [frame for frame in frames if not frame[0].startswith(OURS)]
    for file, line, name in sorted(others, key=lambda frame: INSTALLED in frame[0]):  # stable: the innermost first
        return f"{Path(file).name}:{line} in {name}"
    return ""
