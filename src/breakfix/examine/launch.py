"""Start a command under the probes, pass everything through, and collect what its processes leave."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOOK = Path(__file__).parent / "hook"
FOLDER = "BREAKFIX_EXAMINE"
PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGCONT", "SIGWINCH")


@dataclass
class Run:
    """What came of a command: its exit code (minus a signal's number), and a record for each process with torch."""

    code: int
    wall: float
    records: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # why probes could not be attached, or a record not be left


def examine(command: Sequence[str], environment: dict[str, str], stdout: Any = None) -> Run:
    """Run the command to its end, its output to `stdout` if that is given. OSError where it cannot be started."""
    with tempfile.TemporaryDirectory(prefix="breakfix-examine-", ignore_cleanup_errors=True) as folder:
        started = time.perf_counter()
        child = subprocess.Popen(list(command), env=hooked(environment, folder), stdout=stdout)
        with _passing_on(child):
            code = child.wait()
        wall = time.perf_counter() - started
        records = [json.loads(path.read_text("utf-8")) for path in sorted(Path(folder).glob("*.json"))]
        failed = [path.read_text("utf-8") for path in sorted(Path(folder).glob("*.failed"))]
        return Run(code, wall, records, failed)


def hooked(environment: dict[str, str], folder: str) -> dict[str, str]:
    """The environment in which every Python process finds the hook first."""
    path = [str(HOOK), *filter(None, [environment.get("PYTHONPATH")])]
    return environment | {"PYTHONPATH": os.pathsep.join(path), FOLDER: folder}


@contextmanager
def _passing_on(child: subprocess.Popen):
    """Meanwhile signals are the child's. Ctrl-C in a terminal reaches it by itself."""
    at_terminal = sys.stdin is not None and sys.stdin.isatty()

    def pass_on(number, frame):
        if child.poll() is None and not (number == signal.SIGINT and at_terminal):
            child.send_signal(number)

    numbers = [signal.SIGINT, *(getattr(signal, name) for name in PASSED_ON if hasattr(signal, name))]
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_like(code: int) -> None:
    """End this process as the child has ended: with its exit code, or by the signal that ended it."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0 and hasattr(signal, "SIGKILL"):
        if -code in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
            signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
            os.kill(os.getpid(), -code)
        sys.exit(128 - code)
    sys.exit(code)
