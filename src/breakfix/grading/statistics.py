"""What a class did: states, points, the checks that fail most, and which known wrong fix a failing file behaves like.

A wrong variant declares the checks that reject it. A file that fails the same ones has, as far as the checks can see,
the same mistake; where several variants fail the same checks, all of them are told.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from breakfix.catalog import Catalog, Lab, Variant
from breakfix.grading.exports import Graded
from breakfix.grading.gradebook import MISSING
from breakfix.verdict import EXIT_CODES, PASSED, Verdict

AS_GIVEN = "the file as it was given"
LEAST_LIKE = 0.5  # shared checks by all checks that either fails: below this a file behaves like none of them


@dataclass(frozen=True)
class Likeness:
    """The wrong fixes whose checks come nearest to those that a file fails; `exactly` if they are the same."""

    names: tuple[str, ...]
    reasons: tuple[str, ...]  # what each of them does wrong
    exactly: bool

    @property
    def told(self) -> str:
        """All of the names, as one."""
        return " or ".join(self.names)


@dataclass(frozen=True)
class LabStatistics:
    """One lab's class: counts, never names but in `like_by_student`."""

    lab: str
    title: str
    states: dict[str, int]
    handed_in: int
    judged: int
    failed_checks: dict[str, int]
    points: list[int]
    most: int
    like: dict[str, int]
    like_by_student: dict[str, Likeness]

    def to_json(self) -> dict:
        """A dict for json.dumps."""
        students = {
            student: {"like": list(found.names), "exactly": found.exactly, "reasons": list(found.reasons)}
            for student, found in self.like_by_student.items()
        }
        return {
            "title": self.title, "states": self.states, "handed_in": self.handed_in, "judged": self.judged,
            "failed_checks": self.failed_checks, "points": self.points, "most": self.most, "like": self.like,
            "students": students,
        }  # fmt: skip


def of_class(rows: list[Graded], catalog: Catalog) -> list[LabStatistics]:
    """One for each lab of a gradebook."""
    labs = sorted({row.grade.lab for row in rows})
    return [of_lab([row for row in rows if row.grade.lab == lab], catalog[lab]) for lab in labs]


def of_lab(rows: list[Graded], lab: Lab) -> LabStatistics:
    """The statistics of one lab's grades."""
    judged = [row.verdict for row in rows if row.verdict and row.verdict.checks]
    like = {row.grade.student: found for row in rows if (found := likeness(row.verdict, lab))}
    return LabStatistics(
        lab.id, lab.title,
        dict(Counter(row.grade.state for row in rows).most_common()),
        sum(row.grade.state != MISSING for row in rows),
        len(judged),
        dict(Counter(name for v in judged for name in v.failed_checks).most_common()),
        [row.grade.points for row in rows],
        max((row.grade.most for row in rows), default=0),
        dict(Counter(found.told for found in like.values()).most_common()),
        like,
    )  # fmt: skip


def likeness(verdict: Verdict | None, lab: Lab) -> Likeness | None:
    """What a failing file behaves like; None where it passed, or was stopped by what the file did not cause."""
    if verdict is None or verdict.state == PASSED or verdict.state not in EXIT_CODES:
        return None
    fails = verdict.failed_checks if verdict.checks else frozenset([verdict.state])
    known = [(AS_GIVEN, lab.starter_fails, "Nothing that the checks can see was changed.")]
    known += [(variant.path.stem, variant.expects, variant.reason) for variant in _wrong(lab)]
    best = max(_overlap(fails, expects) for _, expects, _ in known)
    if best < LEAST_LIKE:
        return Likeness(("none that is known",), ("It fails checks that no known wrong fix fails together.",), False)
    nearest = [(name, reason) for name, expects, reason in known if _overlap(fails, expects) == best]
    if nearest[0][0] == AS_GIVEN:  # much likelier than a repair that happens to fail the same
        nearest = nearest[:1]
    names, reasons = zip(*nearest, strict=True)
    return Likeness(names, reasons, best == 1)


def _wrong(lab: Lab) -> Iterable[Variant]:
    return (variant for variant in lab.variants if variant.kind == "wrong" and not variant.needs_cuda)


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a | b else 0.0
