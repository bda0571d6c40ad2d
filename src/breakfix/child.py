"""One process for one piece of somebody else's code: the only place that limits it, kills it, and sees it from outside.

    fork ──▶ child: its own session, stdin empty, output to a capped log, one pipe for the bytes that fn() returns
      │
      └─ parent: reads both pipes, and every 50 ms asks the kernel how much time and memory the whole family uses

What the kernel says (time, resident size, exit status) the child cannot forge. Its temporary files go into a folder
that is removed after it. Without fork (Windows, macOS) the same function runs in a fresh process, and then only the
wall clock is bounded.
"""

import ctypes
import faulthandler
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from breakfix import evidence
from breakfix.verdict import OUT_OF_MEMORY, TIMEOUT, TOO_MUCH_DATA

ENDED = "ended"
DATA_LIMIT = evidence.LIMIT + 1  # one frame and its tag
LOG_LIMIT = 64 << 10  # bytes of output kept: the last ones, as a traceback comes last
TICK = 0.05  # seconds between two looks at the family
ASKING = 3.0  # seconds for asking a family that is to be killed where it stands
STARTING, LEAVING = 60.0, 10.0  # seconds that a fresh process has to import torch, and to end after its last word
LINUX = sys.platform == "linux"
CAN_FORK = LINUX and not os.environ.get("BREAKFIX_NO_FORK")

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 4, 36, 37
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Bounds:
    """What a child may use, its descendants included."""

    cpu_seconds: float = 5.0
    memory_mib: float = 2048.0

    @property
    def wall_seconds(self) -> float:
        """Generous, because the same work took three to four times as long on a busy machine."""
        return 5 * self.cpu_seconds + 10


@dataclass(frozen=True)
class Ended:
    """How a child ended, the bytes it sent, what it printed, and what was seen from outside."""

    state: str  # ENDED, TIMEOUT, OUT_OF_MEMORY or TOO_MUCH_DATA
    data: bytes
    log: str
    exit: int
    outside: dict[str, float] = field(default_factory=dict)


def run_child(fn: Callable[[], bytes], bounds: Bounds, enter: Callable[[], None] | None = None) -> Ended:
    """Run `fn` in a process of its own and return its bytes, or how it went wrong; nothing of it is left behind.

    `enter` goes into a sandbox first, which has a /tmp of its own; it needs fork.
    """
    assert CAN_FORK or enter is None
    return _run_forked(fn, bounds, enter) if CAN_FORK else _run_fresh(fn, bounds)


def not_dumpable() -> None:
    """Close this process's memory to others of the same user: a subject must not write into its judge. Linux only."""
    if LINUX:
        _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of all descendants' orphans, so that neither bounds nor kills miss them. Linux only.

    For a process that does nothing else: `run_child` then takes every child of it for a member of the family.
    """
    if LINUX:
        _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_children(besides: Collection[int] = ()) -> None:
    """Kill and reap every child of this process but those in `besides`, until there is none. Linux only."""
    while children := [p.pid for p in _processes().values() if p.parent == os.getpid() and p.pid not in besides]:
        for pid in children:
            _kill(pid, signal.SIGKILL)
            _reap(pid)


def use_for_temporary_files(folder: str) -> None:
    """Let whatever this process and its children put aside go into `folder`."""
    os.environ["TMPDIR"] = tempfile.tempdir = folder


# ---------------------------------------------------------------------------------------------------------- the parent


def _run_forked(fn: Callable[[], bytes], bounds: Bounds, enter: Callable[[], None] | None) -> Ended:
    sys.stdout.flush(), sys.stderr.flush()  # else the child would print them again
    with tempfile.TemporaryDirectory(prefix="run-", ignore_cleanup_errors=True) as folder:
        data_end, log_end = os.pipe(), os.pipe()
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _become(data_end[1], log_end[1], folder, enter, fn)
        os.close(data_end[1]), os.close(log_end[1])
        watch = _Watch(pid, data_end[0], log_end[0], bounds, started)
        try:
            state = watch.until_it_ends()
            if state == TIMEOUT:
                watch.ask_where()
        finally:
            _end(pid)
            _, status, usage = os.wait4(pid, 0)
            watch.drain()
            watch.close()
    outside = {
        "wall_seconds": time.monotonic() - started,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "maxrss_mib": usage.ru_maxrss / 1024,
    }
    return Ended(state, bytes(watch.data), watch.log_text(), os.waitstatus_to_exitcode(status), outside)


def _end(pid: int) -> None:
    """Kill the family of `pid` until nobody of it runs: one may have been forked between a look and a kill."""
    while running := [member.pid for member in _family(pid) if member.running]:
        for member in running:
            _kill(member, signal.SIGKILL)
        time.sleep(0.001)


class _Watch:
    """The parent's side of one forked child."""

    def __init__(self, pid: int, data_fd: int, log_fd: int, bounds: Bounds, started: float):
        self.pid, self.bounds, self.started = pid, bounds, started
        self.data, self.log = bytearray(), bytearray()
        self.buffers = {data_fd: self.data, log_fd: self.log}
        self.exited = os.pidfd_open(pid)
        for fd in self.buffers:
            os.set_blocking(fd, False)

    def until_it_ends(self) -> str:
        """Read until the child exits or breaks a bound; returns which."""
        next_look = time.monotonic()
        open_fds = set(self.buffers)
        while True:
            ready, _, _ = select.select([*open_fds, self.exited], [], [], TICK)
            open_fds -= {fd for fd in ready if fd in self.buffers and not self._read(fd)}
            if len(self.data) > DATA_LIMIT:
                return TOO_MUCH_DATA
            if self.exited in ready:
                return ENDED
            if time.monotonic() >= next_look:
                if broken := self._broken_bound():
                    return broken
                next_look = time.monotonic() + TICK

    def ask_where(self) -> None:
        """Let faulthandler print every thread of every process of the family, stuck in C or not."""
        deadline = time.monotonic() + ASKING  # two hundred forks are not all asked: until they are killed they run on
        for member in _family(self.pid):  # one after the other, or their lines would mix
            if time.monotonic() > deadline:
                break
            _kill(member.pid, signal.SIGUSR1)
            self._read_until_quiet()

    def _read_until_quiet(self) -> None:
        """Read until nothing has come for 0.1 s; on a busy machine the first of it takes a while."""
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            if self.drain():
                deadline = min(deadline, time.monotonic() + 0.1)
            time.sleep(0.01)

    def drain(self) -> bool:
        """Read what is there, and say whether there was something."""
        return any([self._drain(fd) for fd in self.buffers])

    def _drain(self, fd: int) -> bool:
        """A bounded number of times, as somebody may write faster than this reads."""
        for reads in range(DATA_LIMIT // _CHUNK + 1):
            if not self._read(fd):
                return reads > 0
        return True

    def close(self) -> None:
        for fd in (*self.buffers, self.exited):
            os.close(fd)

    def log_text(self) -> str:
        return self.log.decode(errors="replace")

    def _read(self, fd: int) -> bool:
        """Whether there was something to read."""
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        self.buffers[fd] += chunk
        if fd != next(iter(self.buffers)):
            del self.log[:-LOG_LIMIT]
        return bool(chunk)

    def _broken_bound(self) -> str | None:
        family = _family(self.pid)
        if time.monotonic() - self.started > self.bounds.wall_seconds:
            return TIMEOUT
        if sum(p.cpu for p in family) > self.bounds.cpu_seconds:
            return TIMEOUT
        # resident sizes count shared pages once per process: too much, so only a suspicion; proportional sizes decide
        limit = self.bounds.memory_mib * 2**20
        if sum(p.resident for p in family) > limit and self._add_up_to_more(family, limit):
            return OUT_OF_MEMORY
        return None

    def _add_up_to_more(self, family: list["_Process"], limit: float) -> bool:
        """Of a process that forks all the time the kernel takes a second to tell: not longer than the wall bound."""
        total, deadline = 0, self.started + self.bounds.wall_seconds
        for process in family:
            total += _proportional(process)
            if total > limit or time.monotonic() > deadline:
                break
        return total > limit


# ----------------------------------------------------------------------------------------------------------- the child


def _become(data_fd: int, log_fd: int, folder: str, enter: Callable[[], None] | None, fn: Callable) -> None:
    """Turn this fork into the child. Never returns."""
    code = 1
    try:
        os.setsid()
        _take_fds(data_fd, log_fd)
        libc = _libc()
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        # freed tensors leave the resident size at once, so that its peak equals the bytes that were alive; small ones
        # are left to the heap, as every page that comes back costs a page fault
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 20), libc.mallopt(_M_TRIM_THRESHOLD, 4 << 20)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        use_for_temporary_files(folder)
        if enter:
            enter()
            use_for_temporary_files(os.environ["TMPDIR"])  # which may be another one now
        _write_all(3, fn())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):  # fn may have closed or replaced it, and must not come out of here
            sys.stdout.flush()
        os._exit(code)


def _take_fds(data_fd: int, log_fd: int) -> None:
    """Nothing on 0, the log on 1 and 2, the data pipe on 3, all else closed."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log_fd, 1), os.dup2(log_fd, 2)
    os.dup2(data_fd, 3)
    os.closerange(4, 4096)
    # line-buffered, or os._exit would lose what the learner printed
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


# ---------------------------------------------------------------------------------------------- looking from outside


@dataclass(frozen=True)
class _Process:
    pid: int
    running: bool  # false: it has ended, and nobody has waited for it yet
    parent: int
    session: int
    cpu: float  # seconds, its waited-for children included
    resident: int  # bytes


def _processes() -> dict[int, _Process]:
    found = {}
    for entry in os.listdir("/proc") if LINUX else ():
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()
            except OSError:  # it has just ended
                continue
            cpu = sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")
            resident = int(stat[21]) * os.sysconf("SC_PAGE_SIZE")
            running = stat[0] not in (b"Z", b"X")
            found[int(entry)] = _Process(int(entry), running, int(stat[1]), int(stat[3]), cpu, resident)
    return found


def _family(pid: int) -> list[_Process]:
    """`pid`, its descendants, whoever is left of its session, and orphans that this process has adopted."""
    processes = _processes()
    adopter = os.getpid() if _adopts_orphans() else None
    family = {p.pid for p in processes.values() if p.pid == pid or p.session == pid or p.parent == adopter}
    while more := {p.pid for p in processes.values() if p.parent in family} - family:
        family |= more
    return [processes[member] for member in sorted(family)]


def _adopts_orphans() -> bool:
    answer = ctypes.c_int()
    _libc().prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def _proportional(process: _Process) -> int:
    """Resident bytes of `process`, each shared page divided by those who share it; all, if it does not let us look."""
    try:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except PermissionError:  # a process may close itself to others of its own user
        return process.resident
    except OSError:  # it has just ended
        pass
    return 0


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


@lru_cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


# ---------------------------------------------------------------------------------------------------------- no fork


def _run_fresh(fn: Callable[[], bytes], bounds: Bounds) -> Ended:
    """The same in a fresh process: slower, and only the wall clock and the bytes are bounded."""
    spawn = multiprocessing.get_context("spawn")
    started, seconds = time.monotonic(), STARTING + bounds.wall_seconds
    with tempfile.TemporaryDirectory(prefix="run-", ignore_cleanup_errors=True) as folder:
        ours, theirs = spawn.Pipe(duplex=False)
        _log_of(folder).touch()
        process = spawn.Process(target=_send, args=(fn, theirs, folder, time.time() + seconds))
        process.start()
        theirs.close()
        state, data = _received(ours, process, seconds + 1)  # one second to say where it stands
        process.join(LEAVING if state == ENDED else 0)
        process.kill()
        process.join()
        log = _log_of(folder).read_bytes()[-LOG_LIMIT:].decode(errors="replace")
    return Ended(state, data, log, process.exitcode, {"wall_seconds": time.monotonic() - started})


def _received(pipe: Connection, process: BaseProcess, seconds: float) -> tuple[str, bytes]:
    """(state, bytes) of a fresh process that has `seconds`."""
    ready = wait([pipe, process.sentinel], seconds)
    if not ready:
        return TIMEOUT, b""
    if pipe not in ready:  # it is about to end, and then its last word is there or will never be
        process.join(LEAVING)
    try:
        return ENDED, pipe.recv_bytes(DATA_LIMIT) if pipe.poll() else b""
    except EOFError:  # it ended without a word
        return ENDED, b""
    except OSError:
        return TOO_MUCH_DATA, b""


def _send(fn: Callable[[], bytes], pipe: Connection, folder: str, deadline: float) -> None:
    """The fresh process. Never returns: the interpreter's own farewell would wait for the threads of fn()."""
    code = 1
    try:
        with open(_log_of(folder), "wb") as log:
            os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
        sys.stdout.reconfigure(line_buffering=True)
        faulthandler.dump_traceback_later(max(deadline - time.time(), 0.01))
        use_for_temporary_files(folder)
        pipe.send_bytes(fn())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def _log_of(folder: str) -> Path:
    return Path(folder, "log")
