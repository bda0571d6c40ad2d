"""The learner's own folder: one folder per lab that was started, and one small readable file that remembers.

breakfix.json            what was passed, hinted, predicted; deleting it loses only that
lab08/train.py           hers; `start` never overwrites it, `reset` keeps a copy
"""

import difflib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from breakfix import state as state_file
from breakfix.cache import digest
from breakfix.catalog import Catalog, Lab, UnknownLab
from breakfix.state import STATE_FILE, WorkspaceError

LAB_FOLDER = re.compile(r"lab\d\d")
STARTED, CHANGED, PASSED, NOT_STARTED = "started", "changed since it passed", "passed", "not started"


@dataclass
class Workspace:
    """A learner's folder."""

    root: Path
    state: dict[str, Any] = field(default_factory=state_file.empty)

    @classmethod
    def find(cls, start: Path | None = None) -> "Workspace":
        """The workspace round `start` (default: the current folder), else a new one there. Raises WorkspaceError."""
        start = (start or _here()).resolve()
        root = next((p for p in (start, *start.parents) if (p / STATE_FILE).is_file()), None)
        if root is None:  # somebody may have deleted the state file, and be in the folder of a lab
            is_lab = LAB_FOLDER.fullmatch(start.name) and (start / "README.md").is_file()
            root = start.parent if is_lab else start
        return cls(root, state_file.read(root / STATE_FILE))

    # ---- files

    def file(self, lab: Lab) -> Path:
        """The file of `lab` that the learner edits."""
        return self.root / lab.id / lab.editable

    def start(self, lab: Lab) -> Path:
        """Give the learner a copy of the starter, of the README and of what else the lab shows; never overwrites."""
        file = self.file(lab)
        copies = {file.parent / name: content for name, content in given_files(lab).items()}
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            for path, content in copies.items():
                _create(path, content)
        except (FileExistsError, NotADirectoryError):
            raise WorkspaceError(f"{file.parent} is in the way: it is no folder; move it, then start again") from None
        if not file.is_file():
            raise WorkspaceError(f"{file} is in the way: it is not a file, or a broken link; move it, then start again")
        with self.changing(lab) as note:
            note.setdefault("started", _now())
        return file

    def reset(self, lab: Lab) -> Path | None:
        """Put the starter back; what was there is kept under the name that is returned."""
        given_files(lab)  # a lab that cannot be read must not cost the learner her file
        file, kept = self.file(lab), None
        with state_file.alone_in(self.root):
            if os.path.lexists(file):
                kept = _free_name(file)
                file.rename(kept)
        self.start(lab)
        return kept

    def diff(self, lab: Lab, against: Path, name: str) -> list[str]:
        """Lines of a unified diff from the learner's file to `against`, which is shown as `name`."""
        mine, other = (p.read_text("utf-8", errors="replace").splitlines() for p in (self.file(lab), against))
        return list(difflib.unified_diff(mine, other, f"{lab.id}/{lab.editable}", name, lineterm=""))

    def lab_here(self, catalog: Catalog, name: str | None = None) -> Lab | None:
        """The lab called `name`, or whose folder that is; without one, that of the current folder, if it is a lab's.

        Raises UnknownLab, BadLab.
        """
        if name and (last := Path(name).name):  # a shell completes lab08 to lab08/
            return catalog[last]
        here = _here().resolve()
        inside = here.relative_to(self.root).parts[:1] if here.is_relative_to(self.root) else ()
        try:
            return catalog[inside[0]] if inside and LAB_FOLDER.fullmatch(inside[0]) else None
        except UnknownLab:
            return None

    # ---- what is remembered

    def note(self, lab: Lab) -> dict[str, Any]:
        """A copy of what is remembered of `lab`."""
        return deepcopy(self.state["labs"].get(lab.id, {}))

    @contextmanager
    def changing(self, lab: Lab) -> Iterator[dict[str, Any]]:
        """What is remembered of `lab`, to be changed: read anew, then written, so that two terminals lose nothing."""
        with state_file.alone_in(self.root):
            state = state_file.read(self.root / STATE_FILE)
            before = deepcopy(state)
            yield state["labs"].setdefault(lab.id, {})
            if state != before:
                state_file.write(self.root / STATE_FILE, state)
            self.state = state

    def passed(self, lab: Lab) -> bool:
        """Whether the file as it is now has passed: judged by its content, not by a flag."""
        content = self.note(lab).get("passed", {}).get("content")
        return content is not None and content == content_of(self.file(lab))

    def record_pass(self, lab: Lab, content: str, seed: int) -> None:
        """Remember that a file with this content passed."""
        with self.changing(lab) as note:
            note["passed"] = {"content": content, "seed": seed, "at": _now()}

    def take_back_pass(self, lab: Lab, content: str) -> None:
        """Forget that this content passed, since another seed has shown that it does not always."""
        with self.changing(lab) as note:
            if note.get("passed", {}).get("content") == content:
                del note["passed"]

    def record_solution_seen(self, lab: Lab) -> None:
        """Remember that the learner has seen how it is fixed before she did it."""
        with self.changing(lab) as note:
            note.setdefault("solution_seen", _now())

    def next_hint(self, lab: Lab) -> int:
        """How many hints the learner has now seen: one more than before, while there are any."""
        with self.changing(lab) as note:
            note["hints"] = min(note.get("hints", 0) + 1, len(lab.hints))
            return note["hints"]

    def status(self, lab: Lab) -> str:
        """PASSED, CHANGED, STARTED or NOT_STARTED."""
        if not self.file(lab).is_file():
            return NOT_STARTED
        if self.passed(lab):
            return PASSED
        return CHANGED if "passed" in self.note(lab) else STARTED

    def next_lab(self, labs: Iterable[Lab]) -> Lab | None:
        """The first of `labs` that has not passed and whose prerequisites have; else the first that has not."""
        labs = list(labs)
        left = [lab for lab in labs if not self.passed(lab)]
        waiting = {lab.id for lab in left}
        return next((lab for lab in left if waiting.isdisjoint(lab.prerequisites)), left[0] if left else None)


def given_files(lab: Lab) -> dict[str, bytes]:
    """By name what a learner gets: all of the lab's folder but what measures it."""
    others = {p.name: p for p in lab.path.iterdir() if p.is_file() and not p.name.startswith(".")}
    for name in ("lab.toml", "measure.py", "README.md", lab.editable):
        others.pop(name, None)
    given = {lab.editable: lab.starter.read_bytes(), "README.md": lab.readme().encode()}
    return given | {name: path.read_bytes() for name, path in sorted(others.items())}


def content_of(file: Path) -> str | None:
    """A short name for what `file` holds now; None where it cannot be read, as while an editor replaces it."""
    try:
        return digest(file.read_bytes())
    except OSError:
        return None


def shown(path: Path) -> str:
    """`path` as it is shortest from the current folder."""
    path, here = Path(path).absolute(), _here()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise WorkspaceError("the current folder has been removed; go into one that exists") from None


def _create(path: Path, content: bytes) -> None:
    """Write a new file, whole or not at all; whatever has that name already, a broken link too, is left alone."""
    if os.path.lexists(path):
        return
    try:
        with open(path, "xb") as file:
            file.write(content)
    except FileExistsError:  # another process was faster
        return
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _free_name(file: Path) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    names = (file.with_name(f"{file.stem}.{stamp}{f'-{n}' if n else ''}{file.suffix}") for n in range(1000))
    return next(name for name in names if not os.path.lexists(name))


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
