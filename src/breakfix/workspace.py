"""The learner's own folder: one folder per lab that was started, and one small readable file that remembers.

breakfix.json            what was passed, hinted, predicted; deleting it loses only that
lab08/train.py           hers; `start` never overwrites it, `reset` keeps a copy
"""

import difflib
import json
import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from breakfix.cache import digest, lab_digest
from breakfix.catalog import Catalog, Lab, UnknownLab

STATE_FILE = "breakfix.json"
EMPTY: dict[str, Any] = {"version": 1, "labs": {}}


class WorkspaceError(Exception):
    """Something in the learner's folder is in the way; the message says what, where and what to do."""


@dataclass
class Workspace:
    """A learner's folder."""

    root: Path
    state: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, start: Path | None = None) -> "Workspace":
        """The workspace that `start` (default: the current folder) lies in: the nearest folder with a state file, or `start`."""
        start = (start or Path.cwd()).resolve()
        root = next((p for p in (start, *start.parents) if (p / STATE_FILE).is_file()), start)
        return cls(root, _read(root / STATE_FILE))

    # ---- files

    def file(self, lab: Lab) -> Path:
        """The file of `lab` that the learner edits."""
        return self.root / lab.id / lab.editable

    def start(self, lab: Lab) -> Path:
        """Give the learner a copy of the starter and the lab's README; an existing file is left as it is."""
        file = self.file(lab)
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            _write(file, lab.starter.read_text("utf-8"))
        if not (readme := file.parent / "README.md").exists():
            _write(readme, lab.readme())
        self.note(lab).setdefault("started", _now())
        self.save()
        return file

    def reset(self, lab: Lab) -> Path | None:
        """Put the starter back; the learner's file is kept under the name that is returned."""
        file, kept = self.file(lab), None
        if file.exists():
            kept = _free_name(file)
            os.replace(file, kept)
        self.start(lab)
        return kept

    def diff(self, lab: Lab, against: Path, name: str) -> list[str]:
        """Lines of a unified diff from the learner's file to `against`, which is shown as `name`."""
        mine = self.file(lab).read_text("utf-8").splitlines()
        other = against.read_text("utf-8").splitlines()
        return list(difflib.unified_diff(mine, other, f"{lab.id}/{lab.editable}", name, lineterm=""))

    def lab_here(self, catalog: Catalog, name: str | None) -> Lab:
        """The lab called `name`; without one, that of the current folder. Raises UnknownLab, BadLab, WorkspaceError."""
        if name:
            return catalog[Path(name).name if os.sep in name else name]
        for folder in (here := Path.cwd().resolve(), *here.parents):
            try:
                return catalog[folder.name]
            except UnknownLab:
                continue
        raise WorkspaceError("which lab? Name one, as in `breakfix check lab00`, or go into its folder")

    # ---- what is remembered

    def note(self, lab: Lab) -> dict[str, Any]:
        """What is remembered of `lab`; change it, then `save`."""
        return self.state["labs"].setdefault(lab.id, {})

    def passed(self, lab: Lab) -> bool:
        """Whether the file as it is now has passed: judged by its content, not by a flag."""
        if lab.id not in self.state["labs"] or not self.file(lab).is_file():
            return False
        return self.note(lab).get("passed", {}).get("content") == self._content(lab)

    def record_pass(self, lab: Lab, seed: int) -> None:
        """Remember that the file as it is now passed."""
        self.note(lab)["passed"] = {"content": self._content(lab), "seed": seed, "at": _now()}
        self.save()

    def status(self, lab: Lab) -> str:
        """`passed`, `changed since it passed`, `started` or `not started`."""
        if self.passed(lab):
            return "passed"
        if not self.file(lab).is_file():
            return "not started"
        return "changed since it passed" if "passed" in self.note(lab) else "started"

    def next_lab(self, catalog: Catalog) -> Lab | None:
        """The first lab that has not passed and whose prerequisites have; else the first that has not."""
        left = [lab for lab in catalog if not self.passed(lab)]
        done = {lab.id for lab in catalog} - {lab.id for lab in left}
        return next((lab for lab in left if set(lab.prerequisites) <= done), left[0] if left else None)

    def save(self) -> None:
        """Write the state file, whole or not at all."""
        _write(self.root / STATE_FILE, json.dumps(self.state, indent=2, ensure_ascii=False) + "\n")

    def _content(self, lab: Lab) -> str:
        return digest(self.file(lab).read_bytes(), lab_digest(lab).encode())


def _read(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return json.loads(json.dumps(EMPTY))
    except ValueError as error:
        raise WorkspaceError(f"{path} cannot be read ({error}); mend it, or move it away to begin anew") from None
    labs = state.get("labs") if isinstance(state, dict) else None
    if not isinstance(labs, dict) or not all(isinstance(note, dict) for note in labs.values()):
        raise WorkspaceError(f"{path} is not a state file of breakfix; mend it, or move it away to begin anew")
    return state


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, "utf-8")
    os.replace(partial, path)


def _free_name(file: Path) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    names = [file.with_name(f"{file.stem}.{stamp}{(n and f'-{n}') or ''}{file.suffix}") for n in range(100)]
    return next(name for name in names if not name.exists())


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
