"""What the learner's commands share: the catalog, the workspace, a warm engine, and one way to judge a file."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from breakfix import evidence, predict
from breakfix.cache import ANY_SEED, VerdictCache
from breakfix.catalog import Catalog, Lab
from breakfix.judge import fresh_seed
from breakfix.subject import Job
from breakfix.verdict import Verdict
from breakfix.workspace import Workspace, WorkspaceError
from breakfix.zygote import Engine


@dataclass
class Session:
    """One use of the command line. A context manager: it ends the engine."""

    catalog: Catalog = field(default_factory=Catalog.read)
    workspace: Workspace = field(default_factory=Workspace.find)
    cache: VerdictCache = field(default_factory=VerdictCache)
    device: str = "cpu"

    @cached_property
    def engine(self) -> Engine:
        return Engine()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_) -> None:
        self.engine.close()

    def labs_here(self, names: list[str] | None) -> list[Lab]:
        """The labs that were named, or that of the current folder."""
        return [self.workspace.lab_here(self.catalog, name) for name in names or [None]]

    def file(self, lab: Lab) -> Path:
        """The learner's file of `lab`. Raises WorkspaceError if it was not started."""
        file = self.workspace.file(lab)
        if not file.is_file():
            raise WorkspaceError(f"{_shown(file)} is not there; `breakfix start {lab.id}` makes it")
        return file

    def judge(self, lab: Lab, path: Path, seed: int | None = None, fresh: bool = False) -> tuple[Verdict, bool]:
        """The verdict on `path`, and whether it was kept from an earlier time because nothing has changed since."""
        job = Job.of_file(lab, path, ANY_SEED if seed is None else seed, self.device)
        if not fresh and (kept := self.cache.get(job)):
            return kept, True
        verdict = self.engine.judge(lab, path, fresh_seed() if seed is None else seed, self.device)
        self.cache.put(job, verdict)
        return verdict, False

    def judge_own(self, lab: Lab, seed: int | None = None, fresh: bool = False) -> tuple[Verdict, bool]:
        """The verdict on the learner's own file; a pass is remembered."""
        verdict, kept = self.judge(lab, self.file(lab), seed, fresh)
        if verdict.passed and not self.workspace.passed(lab):
            self.workspace.record_pass(lab, verdict.seed)
        return verdict, kept

    def broken_and_fixed(self, lab: Lab, seed: int = 1) -> tuple[Verdict, Verdict]:
        """The verdicts on the starter and on the solution."""
        return self.judge(lab, lab.starter, seed)[0], self.judge(lab, lab.solution, seed)[0]

    def predictions(self, lab: Lab) -> list[tuple[str, str | None, str | None]]:
        """(question, the learner's answer, the right choice) from the evidence of the starter."""
        answers = self.workspace.note(lab).get("predictions", [])
        if not answers or all(a is None for a in answers):
            return []
        verdict = self.engine.judge(lab, lab.starter, 1, self.device, ask=False)
        return predict.score(lab, answers, evidence.decode(verdict.frame)) if verdict.frame else []


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
