"""A class graded in parts, on as many machines as there are: which part a file belongs to, and the parts put together.

A file's part follows from its lab and its bytes alone, so it does not change when somebody else hands in later, and
students with the same file are in the same part, where it is judged once.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from breakfix.cache import digest
from breakfix.grading.gradebook import Grade, Gradebook
from breakfix.grading.submissions import Handin

LISTING = "shard.json"  # beside a part's gradebook: which part it is, and all files of the class as it saw them
SHOWN = 5  # names in a message


class BadShard(ValueError):
    """A part that cannot be, or parts that do not belong together; the message says what to do."""


@dataclass(frozen=True)
class Shard:
    """Part `number`, from 1, of `of`."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """The part that "2/8" means. Raises BadShard."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise BadShard(f"{text!r}; write the part and how many there are, from 1, as in 1/8 to 8/8")
        return cls(int(match[1]), int(match[2]))

    def takes(self, handin: Handin) -> bool:
        """Whether a hand-in belongs to this part; one without a file goes by its student."""
        return int(content(handin) or digest(handin.student.encode()), 16) % self.of == self.number - 1

    def write(self, folder: Path, handins: Iterable[Handin]) -> None:
        """Note in `folder` which part it is, and the whole class, so that a lack can be seen later."""
        listing = [[h.student, h.lab, content(h)] for h in handins]
        told = {"shard": self.number, "of": self.of, "files": listing}
        (folder / LISTING).write_text(json.dumps(told) + "\n", "utf-8")

    def demand_place(self, folder: Path) -> None:
        """Raise BadShard where `folder` holds another part, or a class that was not cut."""
        there = shard_in(folder)
        if there not in (None, self) or (there is None and any(folder.glob("*.sqlite"))):
            what = f"part {there.number}/{there.of}" if there else "grades of a whole class"
            raise BadShard(f"{folder} holds {what}; give every part a folder of its own, with --out")


def shard_in(folder: Path) -> Shard | None:
    """The part that `folder` holds, if it is one. Raises BadShard where its listing is damaged."""
    listing = _listing(folder)
    return listing[0] if listing else None


def _listing(folder: Path) -> tuple[Shard, dict[tuple[str, str], str]] | None:
    path = folder / LISTING
    try:
        told = json.loads(path.read_text("utf-8")) if path.exists() else None
        if told is None:
            return None
        files = {(student, lab): name for student, lab, name in told["files"]}
        return Shard.parse(f"{told['shard']}/{told['of']}"), files
    except (ValueError, KeyError, TypeError) as error:
        raise BadShard(f"{path} cannot be read ({error}); grade that part again") from None


def content(handin: Handin) -> str:
    """A short name for a lab and a file; empty without a file."""
    return digest(handin.lab.encode(), handin.source) if handin.source is not None else ""


@dataclass(frozen=True)
class Part:
    """What one folder holds: its part if it is one, the class as it saw it, and its grades."""

    folder: Path
    shard: Shard | None
    files: dict[tuple[str, str], str]
    grades: dict[tuple[str, str], Grade]
    torch: frozenset[str] = frozenset()

    @classmethod
    def read(cls, folder: Path, book: Gradebook) -> "Part":
        """The part in `folder`. Raises BadShard where its listing is damaged."""
        grades = {(grade.student, grade.lab): grade for grade in book.grades()}
        torch = {v.versions.get("torch", "") for g in grades.values() if (v := book.verdict(g.key))} - {""}
        shard, files = _listing(folder) or (None, {})
        return cls(folder, shard, files, grades, frozenset(torch))


@dataclass
class Merged:
    """What came of putting parts together: `problems` are for somebody to mend, `notes` are not."""

    grades: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict:
        """A dict for json.dumps."""
        return asdict(self)


def merge(parts: list[Part], books: list[Gradebook], target: Gradebook) -> Merged:
    """Put every grade and verdict of `books` into `target`, each once; of contradicting ones the later counts."""
    merged = Merged()
    merged.problems += [*_missing_parts(parts), *_missing_files(parts), *_changed_files(parts)]
    _overlaps(parts, merged)
    if len(versions := frozenset().union(*(part.torch for part in parts))) > 1:
        merged.notes.append(f"the parts were graded with torch {', '.join(sorted(versions))}; grade with one")
    if not any(part.shard for part in parts):
        merged.notes.append("no folder says which part it is, so whether one is missing cannot be told")
    target.absorb(books)
    merged.grades = sum(1 for _ in target.grades())
    return merged


def _missing_parts(parts: list[Part]) -> Iterable[str]:
    shards = [part.shard for part in parts if part.shard]
    ways = sorted({shard.of for shard in shards})
    if len(ways) > 1:
        yield f"the class was cut in different ways, into {' and '.join(map(str, ways))} parts; parts may overlap"
    for of in ways:
        there = [shard.number for shard in shards if shard.of == of]
        if lacking := [n for n in range(1, of + 1) if n not in there]:
            yield f"missing of {of} parts: {_listed(f'{n}/{of}' for n in lacking)}"
        if twice := sorted({n for n in there if there.count(n) > 1}):
            yield f"given twice: {_listed(f'{n}/{of}' for n in twice)}"


def _missing_files(parts: list[Part]) -> Iterable[str]:
    """A part may be there and yet not have come to its end."""
    wanted = {name for part in parts for name in part.files}
    graded = {name for part in parts for name in part.grades}
    if lacking := sorted(wanted - graded):
        names = _listed(map(" ".join, lacking))
        yield f"{len(lacking)} without a grade: {names}; grade the missing parts, then merge again"


def _changed_files(parts: list[Part]) -> Iterable[str]:
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    listed = [part for part in parts if part.shard]
    for part in listed:
        for name in {name for other in listed for name in other.files}:
            seen[name].add(part.files.get(name, "none"))
    if changed := sorted(name for name, contents in seen.items() if len(contents) > 1):
        yield f"handed in or changed while the parts were graded: {_listed(map(' '.join, changed))}; grade these again"


def _overlaps(parts: list[Part], merged: Merged) -> None:
    """What two parts have graded: the same twice is a note, two different grades are a problem."""
    by_name: dict[tuple[str, str], list[tuple[Part, Grade]]] = defaultdict(list)
    for part in parts:
        for name, grade in part.grades.items():
            by_name[name].append((part, grade))
    several = {name: found for name, found in by_name.items() if len(found) > 1}
    alike = [name for name, found in several.items() if len({_outcome(grade) for _, grade in found}) == 1]
    if alike:
        merged.notes.append(f"graded in two parts, with the same outcome: {_listed(map(' '.join, sorted(alike)))}")
    for name in sorted(set(several) - set(alike)):
        told = "; ".join(f"{part.folder}: {grade.state}, {grade.points} points" for part, grade in several[name])
        merged.problems.append(f"{' '.join(name)} has contradicting grades, of which the later counts. {told}")


def _outcome(grade: Grade) -> tuple:
    return grade.key, grade.state, grade.points, grade.most, grade.kept_percent


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
