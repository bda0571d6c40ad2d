"""N ranks on this machine, forked from a process that has torch imported: for labs and measure.py.

    def work(rank, world):                      # a closure is fine: nothing is pickled
        loss = torch.ones(1) * rank
        dist.all_reduce(loss)
        return {"loss": loss}

    results = run_ranks(work, world=2)          # [{"loss": array([1.])}, {"loss": array([1.])}]

A cold start of two ranks costs seconds, a fork of a warm process a quarter of a second. They meet over a file and talk gloo
on the loopback. Each returns one evidence frame; the first one that fails ends all of them.
"""

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

from breakfix.evidence import decode, encode

GRACE_S = 5.0  # the ranks' own timeouts come first, as they say at which line
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

Work = Callable[[int, int], Mapping[str, Any]]


class RankFailed(Exception):
    """A rank raised or died: `rank` is its number, `kind` the exception's type name, `traceback` its own traceback as text."""

    def __init__(self, rank: int, kind: str, text: str):
        super().__init__(f"rank {rank} failed with {kind}\n{text}")
        self.rank, self.kind, self.traceback = rank, kind, text


def run_ranks(work: Work, world: int, *, backend: str = "gloo", timeout_s: float = 60.0) -> list[dict[str, Any]]:
    """Run `work(rank, world)` in `world` forked processes joined in one process group; what each returned, by rank.

    Raises RankFailed with the traceback of the rank that failed first; a collective that waits longer than `timeout_s` for the
    other ranks is such a failure. No process and no file is left behind. `backend` may be any that is registered.
    """
    if torch.cuda.is_initialized():
        raise RuntimeError("ranks cannot be forked once this process has touched CUDA: run it in a fresh process")
    sys.stdout.flush(), sys.stderr.flush()  # else each rank would print them again
    with tempfile.TemporaryDirectory(prefix="breakfix-ranks-") as folder:
        ranks = _Ranks(timeout_s)
        try:
            for rank in range(world):
                ranks.fork(lambda rank=rank: _join_and_work(work, rank, world, backend, folder, timeout_s))
            return [decode(frame) for frame in ranks.frames()]
        finally:
            ranks.end()


# ------------------------------------------------------------------------------------------------------ the parent


class _Ranks:
    """The forked processes, a pipe from each, and one pipe that holds them until all have reported."""

    def __init__(self, timeout_s: float):
        self.pids: list[int] = []
        self.pipes: list[int] = []
        self.hold = os.pipe()
        self.deadline = time.monotonic() + timeout_s + GRACE_S

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
        """One frame per rank. A rank that fails makes the others fail too: the earliest is the one that is raised."""
        reports = [bytearray() for _ in self.pipes]
        with selectors.DefaultSelector() as selector:
            for rank, fd in enumerate(self.pipes):
                selector.register(fd, selectors.EVENT_READ, rank)
            while selector.get_map() and (left := self.deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if not _read_into(reports[key.data], key.fd):
                        selector.unregister(key.fd)
                        if reports[key.data][:1] != b"E":
                            self.deadline = min(
                                self.deadline, time.monotonic() + 0.2
                            )  # for the others to say their part
            unheard = [key.data for key in selector.get_map().values()]
        _raise_first_failure(reports, unheard)
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


def _read_into(report: bytearray, fd: int) -> bool:
    chunk = os.read(fd, 1 << 16)
    report += chunk
    return bool(chunk)


def _raise_first_failure(reports: list[bytearray], unheard: list[int]) -> None:
    silent = [rank for rank, report in enumerate(reports) if not report and rank not in unheard]
    words = "".join(
        f"rank {rank} ended before it had returned anything (killed, aborted, or os._exit)\n" for rank in silent
    )
    failed = [
        (*bytes(report[1:]).decode(errors="replace").split("\n", 2), rank)
        for rank, report in enumerate(reports)
        if report[:1] == b"X"
    ]
    if failed:
        _, kind, text, rank = min(failed, key=lambda report: float(report[0]))
        raise RankFailed(rank, kind, text + words)
    if silent:
        raise RankFailed(silent[0], "no exception", words)
    if unheard:
        raise RankFailed(unheard[0], "TimeoutError", "It has not returned in time.")


# -------------------------------------------------------------------------------------------------------- the rank


def _join_and_work(work: Work, rank: int, world: int, backend: str, folder: str, timeout_s: float) -> bytes:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    torch.set_num_threads(1)  # a thread pool does not survive a fork
    store = dist.FileStore(str(Path(folder, "store")), world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout_s))
    return encode(work(rank, world))


def _report(run: Callable[[], bytes], pipe: int, hold: int) -> None:
    """Send b"E" and the frame, or b"X", the time and the traceback. Never returns: a rank must not run its parent's code."""
    try:
        try:
            report = b"E" + run()
        except BaseException as error:
            lines = traceback.format_exception(type(error), error, _without_ours(error.__traceback__))
            report = f"X{time.monotonic()}\n{type(error).__name__}\n{''.join(lines)}".encode()
        view = memoryview(report)
        while view:
            view = view[os.write(pipe, view) :]
        os.close(pipe)
        if report[:1] == b"E":
            os.read(hold, 1)  # a rank that left early would cut off those that still talk to it
    finally:
        with suppress(Exception):
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(0)  # without tearing the group down, which may abort the process on gloo


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not of this file."""
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
