"""Grade a class: every hand-in to a grade in the gradebook, in any order, resumable at any moment."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from breakfix import sandbox
from breakfix.cache import digest, lab_digest
from breakfix.catalog import Catalog, Lab
from breakfix.grading.assignment import Assignment
from breakfix.grading.gradebook import MISSING, Grade, Gradebook
from breakfix.grading.submissions import Handin, Student
from breakfix.subject import Job
from breakfix.verdict import ERROR, EXIT_CODES, Verdict
from breakfix.zygote import Engine, EngineFailed

SOLUTION, STARTER = "solution", "starter"  # a lab's own files, which a gradebook has verdicts on as well
ITS_OWN_DOING = frozenset(EXIT_CODES)  # states that come of the file; all else is this machine's lack


class CannotGrade(Exception):
    """The set-up is not fit to grade with; the message says what failed."""


@dataclass(frozen=True)
class SelfTest:
    """What judging a lab's own files said: the solution must pass, the starter must not."""

    lab: str
    solution: Verdict
    starter: Verdict

    @property
    def holds(self) -> bool:
        return self.solution.passed and self.starter.state in ITS_OWN_DOING and not self.starter.passed

    @property
    def seconds(self) -> float:
        """CPU seconds that one verdict takes here."""
        return max(v.outside.get("judge_cpu_seconds", v.outside["wall_seconds"]) for v in (self.solution, self.starter))


@dataclass(frozen=True)
class Cohort:
    """An assignment, who may hand in, and the gradebook that keeps what comes of it."""

    assignment: Assignment
    catalog: Catalog
    engine: Engine
    gradebook: Gradebook
    roster: dict[str, Student] | None = None
    isolation: str = sandbox.NAMESPACES

    @property
    def labs(self) -> list[Lab]:
        return [self.catalog[name] for name in self.assignment.points]

    def self_test(self) -> Iterator[SelfTest]:
        """Judge each lab's solution and starter, as submissions are judged; the feedback's figures show both."""
        for lab in self.labs:
            jobs = [self._job(lab, path.read_bytes()) for path in (lab.solution, lab.starter)]
            verdicts = [self.engine.judge_job(job) for job in jobs]
            for what, job, verdict in zip((SOLUTION, STARTER), jobs, verdicts, strict=True):
                self.gradebook.keep(own_key(lab.id, what), lab.id, job.source, verdict)
            yield SelfTest(lab.id, *verdicts)

    def key(self, handin: Handin) -> str:
        """The content that its verdict depends on: lab, environment, file, and the assignment's key by the seed."""
        job = self._job(self.catalog[handin.lab], handin.source)
        return digest(lab_digest(job.lab).encode(), handin.source, str(job.seed).encode())

    def grade(
        self,
        handins: Iterable[Handin],
        again: Callable[[Handin], bool] = lambda handin: False,
        workers: int | None = None,
    ) -> Iterator[Grade]:
        """Grade what has no grade yet, is a new file, or is to be graded `again`; each grade is kept, then given out.

        A file that several students handed in is judged once.
        """
        waiting: dict[str, list[Handin]] = {}
        for handin in handins:
            if handin.source is None:
                yield from self._without_source(handin)
            elif self._is_due(handin, again(handin)):
                waiting.setdefault(self.key(handin), []).append(handin)
        with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
            running: dict[Future, list[Handin]] = {}
            for key, same in waiting.items():
                known = None if any(map(again, same)) else self.gradebook.verdict(key)
                if known:
                    yield from self._kept(key, same, known, new=False)
                else:
                    running[pool.submit(self._judged, self._job_of(same[0]))] = same
            try:
                for done in as_completed(running):
                    same = running[done]
                    yield from self._kept(self.key(same[0]), same, done.result(), new=True)
            except BaseException:  # an interrupt too: what has not begun need not
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _judged(self, job: Job) -> Verdict:
        """A verdict in any case: one file that ends its judge, twice, must not end the grading of a class."""
        for _ in range(2):
            try:
                return self.engine.judge_job(job)
            except EngineFailed as error:
                detail = f"{error}\nNo fault of the file, perhaps: grade it again, with --again"
        return Verdict(job.lab.id, ERROR, job.seed, job.device, detail=detail)

    def _is_due(self, handin: Handin, again: bool) -> bool:
        history = self.gradebook.history(handin.student, handin.lab)
        return again or not history or history[-1].key != self.key(handin)

    def _without_source(self, handin: Handin) -> Iterator[Grade]:
        grade = self._grade(handin, MISSING, 0, None)
        history = self.gradebook.history(handin.student, handin.lab)
        if not history or (history[-1].state, history[-1].trouble) != (MISSING, handin.trouble):
            self.gradebook.record(grade)
            yield grade

    def _kept(self, key: str, same: list[Handin], verdict: Verdict, new: bool) -> Iterator[Grade]:
        """The grades of all who handed in the same file."""
        lab = self.catalog[verdict.lab]
        for i, handin in enumerate(same):
            points = self.assignment.score(lab, verdict.points[0])
            grade = self._grade(handin, verdict.state, points, key)
            self.gradebook.record(grade, handin.source, verdict if new and i == 0 else None)
            yield grade

    def _grade(self, handin: Handin, state: str, points: int, key: str | None) -> Grade:
        student = (self.roster or {}).get(handin.student)
        return Grade(
            handin.student, handin.lab, key, state, points, self.assignment.points[handin.lab],
            self.assignment.kept_percent(handin.at, student.due if student else None),
            handin.at.isoformat() if handin.at else "", handin.where, handin.trouble,
            datetime.now(UTC).isoformat(timespec="seconds"),
        )  # fmt: skip

    def _job_of(self, handin: Handin) -> Job:
        return self._job(self.catalog[handin.lab], handin.source)

    def _job(self, lab: Lab, source: bytes) -> Job:
        """As `check` would judge it, under the name that the file has in its lab."""
        return Job(
            lab.path,
            source,
            str(Path("/submission") / lab.editable),
            self.assignment.seed(lab, source),
            isolation=self.isolation,
        )


def own_key(lab: str, what: str) -> str:
    """The key of the verdict on one of a lab's own files."""
    return f"{lab} {what}"


def minutes(tests: Iterable[SelfTest], files: dict[str, int], workers: int) -> float:
    """An estimate for so many files of each lab, from what its own two files have taken."""
    return sum(test.seconds * files.get(test.lab, 0) for test in tests) / workers / 60
