"""N ranks on this machine, forked from a process that has torch imported: for labs and measure.py.

    def work(rank, world):                      # a closure is fine: nothing is pickled
        total = torch.ones(1)
        dist.all_reduce(total)
        return {"total": total}

    results = run_ranks(work, world=2)          # [{"total": array([2.])}, {"total": array([2.])}]

Two ranks started cold take seconds, forked from a warm process a quarter of a second. They meet over a file and talk
over the loopback. Each returns one evidence frame; the first one that fails ends all of them.
"""

import importlib
import json
import os
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from breakfix.contract import Contract
from breakfix.evidence import decode, encode

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
GRACE_S = 5.0  # the ranks' own timeouts come first, because they say at which line
FRAME, TROUBLE = b"E", b"X"  # first byte of what a rank sends
ENDED = "ended before it had returned: killed, aborted or exited"

Work = Callable[[int, int], Mapping[str, Any]]


class RankFailed(Exception):
    """A rank raised or died: its number, its exception's type name, and the frames of its traceback."""

    def __init__(self, rank: int, kind: str, message: str, frames: traceback.StackSummary):
        super().__init__(f"rank {rank}: {message}")
        self.rank, self.kind, self.frames = rank, kind, frames
        if frames:  # a cause, so that wherever this one is printed, the rank's own lines are too
            self.__cause__ = _InTheRank("\n" + "".join(frames.format()) + message)


class _InTheRank(Exception):
    """Prints as the traceback of the rank."""


def run_ranks(work: Work, world: int, *, backend: str = "gloo", timeout_s: float = 60.0) -> list[dict[str, Any]]:
    """Run `work(rank, world)` in `world` forked processes that form one process group; what each returned, by rank.

    Raises RankFailed for the rank that failed first, or Contract if that is what it raised. A collective that waits
    longer than `timeout_s` for the other ranks is a failure. No process and no file is left behind.
    """
    if torch.cuda.is_initialized():
        raise RuntimeError("this process has used CUDA, which does not survive a fork: call run_ranks in a fresh one")
    importlib.import_module("torch._dynamo")  # which DDP and optimizers need: once here, not once in every rank
    sys.stdout.flush(), sys.stderr.flush()  # else each rank would print them again
    with tempfile.TemporaryDirectory(prefix="breakfix-ranks-") as folder:
        ranks = _Ranks(timeout_s + GRACE_S)
        try:
            for rank in range(world):
                ranks.fork(lambda rank=rank: _join_and_work(work, rank, world, backend, folder, timeout_s))
            return [decode(frame) for frame in ranks.frames()]
        finally:
            ranks.end()


# ---------------------------------------------------------------------------------------------------------- the parent


class _Ranks:
    """The forked processes, a pipe from each, and one pipe that holds all of them until the last has reported."""

    def __init__(self, seconds: float):
        self.pids: list[int] = []
        self.pipes: list[int] = []
        self.hold = os.pipe()
        self.deadline = time.monotonic() + seconds

    def fork(self, run: Callable[[], bytes]) -> None:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(self.hold[1])
            _report(run, theirs, self.hold[0])
        os.close(theirs)
        self.pids.append(pid)
        self.pipes.append(ours)

    def frames(self) -> list[bytes]:
        """One frame per rank. Raises what the rank raised that failed first: the others fail because of it."""
        reports, unheard = self._listen()
        troubles = [(json.loads(r[1:]), rank) for rank, r in enumerate(reports) if r[:1] == TROUBLE]
        silent = [rank for rank, r in enumerate(reports) if not r and rank not in unheard]
        if troubles:
            _raise(*min(troubles, key=lambda t: t[0]["time"]), silent)
        if silent:
            raise RankFailed(silent[0], "", ENDED, traceback.StackSummary())
        if unheard:
            raise RankFailed(unheard[0], "", "has not returned in time", traceback.StackSummary())
        return [bytes(report[1:]) for report in reports]

    def end(self) -> None:
        """Kill and reap every rank, close every pipe."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            with suppress(ChildProcessError):  # reaped already, where SIGCHLD is ignored
                os.waitpid(pid, 0)
        for fd in (*self.pipes, *self.hold):
            os.close(fd)

    def _listen(self) -> tuple[list[bytearray], list[int]]:
        """What each rank sent, and the ranks that had not ended by the deadline."""
        reports = [bytearray() for _ in self.pipes]
        with selectors.DefaultSelector() as selector:
            for rank, fd in enumerate(self.pipes):
                selector.register(fd, selectors.EVENT_READ, rank)
            while selector.get_map() and (left := self.deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    chunk = os.read(key.fd, 1 << 16)
                    reports[key.data] += chunk
                    if not chunk:
                        selector.unregister(key.fd)
                        if reports[key.data][:1] != FRAME:  # the others have a moment to say what they saw
                            self.deadline = min(self.deadline, time.monotonic() + 0.3)
            return reports, [key.data for key in selector.get_map().values()]


def _raise(trouble: dict[str, Any], rank: int, silent: list[int]) -> None:
    if trouble["kind"] == Contract.__name__:
        raise Contract(trouble["message"])
    message = f"{trouble['kind']}: {trouble['message']}"
    message += "".join(f"\nrank {r}: {ENDED}" for r in silent)
    frames = [traceback.FrameSummary(file, line, name, line=text) for file, line, name, text in trouble["frames"]]
    raise RankFailed(rank, trouble["kind"], message, traceback.StackSummary.from_list(frames))


# ------------------------------------------------------------------------------------------------------------ the rank


def _join_and_work(work: Work, rank: int, world: int, backend: str, folder: str, timeout_s: float) -> bytes:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    torch.set_num_threads(1)  # a thread pool does not survive a fork
    store = dist.FileStore(str(Path(folder, "store")), world)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    return encode(work(rank, world))


def _report(run: Callable[[], bytes], pipe: int, hold: int) -> None:
    """Send what `run` returns or how it failed. Never returns: a rank must not go on with its parent's code."""
    try:
        try:
            report = FRAME + run()
        except BaseException as error:
            report = TROUBLE + json.dumps(_trouble(error)).encode()
        _write_all(pipe, report)
        os.close(pipe)
        if report[:1] == FRAME:
            os.read(hold, 1)  # who leaves early cuts off those that still talk to it
    finally:
        with suppress(Exception):
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(0)  # without tearing the group down, which on gloo aborts the process now and then


def _trouble(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(_without_ours(error.__traceback__))
    return {
        "time": time.monotonic(),
        "kind": type(error).__name__,
        "message": str(error),
        "frames": [[f.filename, f.lineno, f.name, f.line] for f in frames],
    }


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not of this file."""
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
