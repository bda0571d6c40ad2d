"""An assignment: which labs, what each is worth, until when, and the key from which its secret inputs follow."""

import hashlib
import secrets
import tomllib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from breakfix.catalog import Catalog, Lab, UnknownLab

KEY_BYTES = 16


class BadAssignment(Exception):
    """An assignment.toml that cannot be used; the message says what to do, a line for each fault."""


@dataclass(frozen=True)
class Assignment:
    """What assignment.toml says. Only the instructor's copy has a key."""

    title: str
    points: dict[str, int]  # by lab, in the order they were named
    key: str = field(default="", repr=False)
    due: datetime | None = None
    percent_per_day: int = 0  # what a late submission loses, as advice
    days: int = 0  # after so many nothing is left

    @classmethod
    def of(cls, labs: list[Lab], title: str, due: datetime | None = None) -> "Assignment":
        """A new one, with a key of its own; each lab is worth what its checks are."""
        return cls(title, {lab.id: worth(lab) for lab in labs}, secrets.token_hex(KEY_BYTES), due)

    @classmethod
    def read(cls, path: Path, catalog: Catalog) -> "Assignment":
        """The assignment in the file at `path`. Raises BadAssignment."""
        try:
            spec = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadAssignment(f"{path}: not TOML: {error}") from None
        if faults := list(_faults(spec, catalog)):
            raise BadAssignment("\n".join(f"{path}: {fault}" for fault in faults))
        late = spec.get("late", {})
        return cls(
            spec["title"], dict(spec["points"]), spec.get("key", ""), spec.get("due"),
            late.get("percent_per_day", 0), late.get("days", 0),
        )  # fmt: skip

    def to_toml(self, with_key: bool) -> str:
        """The file that `read` reads; what students get has no key, for it would tell them their inputs."""
        lines = [f"title = {_quoted(self.title)}"]
        if self.due:
            lines.append(f"due = {self.due.isoformat(timespec='seconds')}")
        if with_key:
            lines += ["# Whoever knows the key knows the inputs: keep it to yourself.", f'key = "{self.key}"']
        lines += ["", "[points]", *(f"{lab} = {points}" for lab, points in self.points.items())]
        if self.percent_per_day:
            lines += ["", "[late]", f"percent_per_day = {self.percent_per_day}", f"days = {self.days}"]
        return "\n".join(lines) + "\n"

    def seed(self, lab: Lab, source: bytes) -> int:
        """The seed of a submission's inputs: nobody can know it beforehand, and the same file always gets the same."""
        digest = hashlib.sha256(f"{self.key} {lab.id} ".encode() + hashlib.sha256(source).digest()).digest()
        return int.from_bytes(digest[:8], "little") % (1 << 31)

    def score(self, lab: Lab, earned: int) -> int:
        """What `earned` of the points of a lab's checks are worth here."""
        return earned * self.points[lab.id] // worth(lab)

    def kept_percent(self, handed_in: datetime | None, due: datetime | None = None) -> int:
        """The share of the points that the late policy leaves; `due` overrides the assignment's own."""
        due = due or self.due
        if not (due and handed_in and self.percent_per_day) or handed_in <= due:
            return 100
        days = -((due - handed_in) // timedelta(days=1))
        return max(0, 100 - days * self.percent_per_day) if days <= self.days else 0


def worth(lab: Lab) -> int:
    """The sum of the points of a lab's checks."""
    return sum(check.points for check in lab.checks)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else " " for c in escaped) + '"'


def _faults(spec: dict[str, Any], catalog: Catalog):
    known = {"title", "due", "key", "points", "late"}
    if unknown := set(spec) - known:
        yield f"unknown key {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}"
    if not isinstance(spec.get("title"), str) or not spec["title"].strip():
        yield 'title is missing; write one, as in title = "Week 3"'
    if not isinstance(spec.get("key", ""), str):
        yield "key must be a string"
    due = spec.get("due")
    if due is not None and (not isinstance(due, datetime) or due.tzinfo is None):
        yield "due needs a time zone, as in due = 2026-12-14T23:59:00+01:00"
    yield from _points_faults(spec.get("points"), catalog)
    yield from _late_faults(spec.get("late", {}))


def _points_faults(points: Any, catalog: Catalog):
    if not isinstance(points, dict) or not points:
        yield "[points] is missing; write a line for each lab, as in lab08 = 10"
        return
    for name, value in points.items():
        try:
            lab = catalog[name]
        except UnknownLab as error:
            yield f"[points] {error.args[0]}"
            continue
        if lab.id != name:
            yield f"[points] {name}: write {lab.id}"
        elif type(value) is not int or value < 1 or value % worth(lab):
            yield f"[points] {name} = {value!r}: its checks add up to {worth(lab)}; write a multiple of that"


def _late_faults(late: Any):
    if not isinstance(late, dict) or set(late) - {"percent_per_day", "days"}:
        yield "[late] holds percent_per_day and days, and nothing else"
    elif not all(type(v) is int and 0 <= v <= 100 for v in late.values()):
        yield "[late] percent_per_day and days are whole numbers from 0 to 100"
