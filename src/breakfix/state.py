"""The state file: what is remembered of a learner's labs, as people may read it, edit it and merge it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STATE_FILE, VERSION = "breakfix.json", 1
# What a lab's entry may hold, and of which type; what is not named here is kept as it is.
NOTE_TYPES = {
    "started": str, "hints": int, "predictions": list, "predictions_shown": bool, "solution_seen": str, "passed": dict
}  # fmt: skip


class WorkspaceError(Exception):
    """Something in the learner's folder is in the way; the message says what, where and what to do."""


def empty() -> dict[str, Any]:
    """What is remembered of a learner who has just begun."""
    return {"version": VERSION, "labs": {}}


def read(path: Path) -> dict[str, Any]:
    """The contents of the state file at `path`; `empty()` where there is none. Raises WorkspaceError."""
    try:
        state = json.loads(path.read_text("utf-8-sig"))  # some editors on Windows begin a file with a byte order mark
    except FileNotFoundError:
        return empty()
    except (ValueError, RecursionError) as error:
        raise _not_ours(path, f"cannot be read ({error})") from None
    if isinstance(state, dict) and isinstance(state.get("version"), int) and state["version"] > VERSION:
        raise WorkspaceError(f"{path} is from a newer breakfix: pip install -U breakfix, or move that file away")
    if problem := _problem(state):
        raise _not_ours(path, problem)
    return state


def _not_ours(path: Path, problem: str) -> WorkspaceError:
    return WorkspaceError(f"{path} {problem}; mend it, or move it away: your files in lab*/ stay as they are")


def _problem(state: Any) -> str | None:
    """What is wrong with the contents of a state file, since people do edit it and merge it."""
    if not isinstance(state, dict) or not isinstance(state.get("labs"), dict):
        return "holds no labs"
    for lab, note in state["labs"].items():
        if not isinstance(note, dict):
            return f"holds no entries under labs, {lab}"
        for key, kind in NOTE_TYPES.items():
            if key in note and type(note[key]) is not kind:
                return f"has a {type(note[key]).__name__} under labs, {lab}, {key}, where a {kind.__name__} belongs"
    return None


def write(path: Path, state: dict[str, Any]) -> None:
    """Write the state file, whole or not at all; a link stays a link."""
    path = path.resolve()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(state, indent=2, ensure_ascii=False) + "\n", "utf-8")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """One process at a time, where a folder can be locked: not on Windows, nor on some network file systems."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
