"""What the learner's commands share: the catalog, the workspace, a warm engine, and one way to judge a file."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from breakfix.cache import ANY_SEED, VerdictCache, digest
from breakfix.catalog import Catalog, Lab
from breakfix.evidence import Evidence, decode
from breakfix.judge import fresh_seed, lacking
from breakfix.predict import Scored, score
from breakfix.render import asking
from breakfix.subject import Job
from breakfix.verdict import ERROR, FAILED, Verdict
from breakfix.workspace import Workspace, WorkspaceError, content_of, shown
from breakfix.zygote import Engine


@dataclass(frozen=True)
class Judged:
    """A verdict, the content it is about, and whether it is from an earlier time since nothing has changed."""

    verdict: Verdict
    content: str | None  # None where the file was saved while it was being judged: nobody knows which half was read
    kept: bool = False


@dataclass
class Session:
    """One use of the command line. A context manager: it ends the engine."""

    catalog: Catalog = field(default_factory=Catalog.read)
    cache: VerdictCache = field(default_factory=VerdictCache)
    device: str = "cpu"

    @cached_property
    def workspace(self) -> Workspace:
        return Workspace.find()

    @cached_property
    def engine(self) -> Engine:
        return Engine()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_) -> None:
        if "engine" in self.__dict__:
            self.engine.close()

    def lab(self, name: str | None = None) -> Lab:
        """The lab that was named, or that of the current folder. Raises UnknownLab, BadLab, WorkspaceError."""
        if lab := self.workspace.lab_here(self.catalog, name):
            return lab
        raise WorkspaceError("which lab? Name one, as in `breakfix check lab00`, or go into its folder")

    def lab_or_next(self, name: str | None = None) -> Lab:
        """The lab that was named, or that of the current folder, or the next one. Raises as `lab` does."""
        if lab := self.workspace.lab_here(self.catalog, name) or self.next_lab():
            return lab
        raise WorkspaceError("every lab that this machine can run has passed; name one to see it again")

    def next_lab(self, skipped: frozenset[str] = frozenset()) -> Lab | None:
        """The next lab to learn from, of those that this machine can run."""
        labs = (lab for lab in self.catalog if lab.id not in skipped and not lacking(lab, self.device))
        return self.workspace.next_lab(labs)

    def file(self, lab: Lab) -> Path:
        """The learner's file of `lab`. Raises WorkspaceError if it was not started."""
        file = self.workspace.file(lab)
        if not file.is_file():
            raise WorkspaceError(f"{shown(file)} is not there; `breakfix start {lab.id}` makes it")
        return file

    def judge(self, lab: Lab, path: Path, seed: int | None = None, fresh: bool = False) -> Judged:
        """The verdict on the file at `path`, or, unless `fresh`, the one from before if nothing has changed."""
        path = path.absolute()
        job = Job.of_file(lab, path, ANY_SEED if seed is None else seed, self.device)
        content = digest(job.source)
        if not fresh and (kept := self.cache.get(job)):
            return Judged(kept, content, kept=True)
        verdict = self.engine.judge(lab, path, fresh_seed() if seed is None else seed, self.device)
        if content_of(path) != content:
            return Judged(verdict, None)
        self.cache.put(job, verdict)
        return Judged(verdict, content)

    def record(self, lab: Lab, judged: Judged) -> None:
        """Remember a pass of the learner's file, or that what had passed does not always. Raises OSError."""
        if judged.content is None:
            return
        if judged.verdict.passed and not self.workspace.passed(lab):
            self.workspace.record_pass(lab, judged.content, judged.verdict.seed)
        elif judged.verdict.state in (FAILED, ERROR) and self.workspace.passed(lab):
            self.workspace.take_back_pass(lab, judged.content)

    def broken_and_fixed(self, lab: Lab, seed: int = 1) -> tuple[Verdict, Verdict]:
        """The verdicts on the starter and on the solution."""
        return self.judge(lab, lab.starter, seed).verdict, self.judge(lab, lab.solution, seed).verdict

    def predict(self, lab: Lab) -> None:
        """Ask what the learner expects, before her first run of `lab` and never again."""
        if lab.predictions and "predictions" not in self.workspace.note(lab):
            answers = asking.predictions(lab.predictions)
            with self.workspace.changing(lab) as note:
                note["predictions"] = answers

    def scored_predictions(self, lab: Lab, starter: Evidence | None = None) -> list[Scored]:
        """What the learner expected beside what the starter shows, once; `starter` is its evidence if it is at hand."""
        note = self.workspace.note(lab)
        answers = note.get("predictions", [])
        if note.get("predictions_shown") or all(answer is None for answer in answers):
            return []
        with self.workspace.changing(lab) as note:
            note["predictions_shown"] = True
        return score(lab, answers, self._starter_evidence(lab) if starter is None else starter)

    def _starter_evidence(self, lab: Lab) -> Evidence:
        verdict = self.engine.judge(lab, lab.starter, 1, self.device, ask=False)
        return decode(verdict.frame) if verdict.frame else {}
