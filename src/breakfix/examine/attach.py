"""Installed in a script's process once torch is there; and the record that the process leaves."""

import atexit
import contextlib
import gc
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

from breakfix.examine.events import Watch
from breakfix.examine.hooks import before_leaving, listen
from breakfix.examine.probes import PROBES
from breakfix.probes import _torch


def install(folder: str, started: float) -> Watch:
    """Attach the probes to this process, and to those that it forks; `started` is when this began."""
    watch = Watch(PROBES)
    listen(watch)
    record = Record(watch, Path(folder))
    atexit.register(record.write)
    before_leaving(record.write)
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=record.forked)
    with contextlib.suppress(ImportError):  # a release that has moved it
        leave_alone()
    gc.freeze()  # what a search for leaks need not look at
    watch.attached_in = time.perf_counter() - started
    watch.begin()
    return watch


def leave_alone() -> None:
    """Tell torch.compile that no code of these probes is to be compiled: it would count as the script's."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("breakfix.examine", "breakfix.probes")):
            for value in vars(module).values():
                members = vars(value).values() if isinstance(value, type) else [value]
                for member in members:
                    if isinstance(member, types.FunctionType) and member.__module__ == name:
                        _torch.never_compile(member.__code__)


class Record:
    """Writes what this process has seen, to a file of its own; nothing where it has seen nothing."""

    def __init__(self, watch: Watch, folder: Path):
        self.watch, self.folder = watch, folder
        watch.flush = self.write
        self.parent = 0

    def forked(self) -> None:
        """In a child: what the parent has seen is the parent's."""
        self.parent = os.getppid()
        self.watch.begin()

    def write(self) -> None:
        """Leave the record; whatever goes wrong, the script does not hear of it."""
        try:
            if self.parent and not (self.watch.backwards or self.watch.steps):
                return
            text = json.dumps(self.content(), default=str)
            unfinished = self.folder / f"{os.getpid()}.writing"
            unfinished.write_text(text, "utf-8")
            unfinished.replace(self.folder / f"{os.getpid()}.json")
        except Exception as error:
            self._failed(error)

    def content(self) -> dict[str, Any]:
        watch = self.watch
        found = [f.to_json() for _, findings in watch.ask("findings") for f in findings or ()]
        figures: dict[str, Any] = {}
        for _, more in watch.ask("figures"):
            figures |= more or {}
        return {
            "pid": os.getpid(), "parent": self.parent, "rank": os.environ.get("RANK", watch.rank),
            "world": watch.world, "argv": sys.argv[:3],
            "torch": sys.modules["torch"].__version__, "python": sys.version.split()[0],
            "steps": watch.steps, "backwards": watch.backwards, "root_calls": watch.root_calls,
            "probes": {p.name: "ran" for p in watch.probes} | watch.off,
            "seconds": watch.seconds, "attached_in": 0.0 if self.parent else watch.attached_in,
            "wall": time.perf_counter() - watch.started,
            "crash": type(getattr(sys, "last_value", None)).__name__ if getattr(sys, "last_value", None) else None,
            "findings": found, "figures": figures,
        }  # fmt: skip

    def _failed(self, error: Exception) -> None:
        with contextlib.suppress(OSError):
            (self.folder / f"{os.getpid()}.failed").write_text(f"{type(error).__name__}: {error}", "utf-8")
