"""What a lab must keep, proved by running it: starters fail as declared, fixes pass, wrong fixes fail, commands run.

The rules that need no run are in `breakfix.rules`. Every message says what the lab's author should do.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from breakfix import evidence
from breakfix.cache import VerdictCache
from breakfix.catalog import Catalog, Lab, Problem
from breakfix.judge import lacking
from breakfix.predict import right_choice
from breakfix.rules import content_problems, listed, parts_to_fill_in, readme_commands, shown
from breakfix.subject import Job
from breakfix.verdict import FAILED, PASSED, Verdict
from breakfix.zygote import ENVIRONMENT, Engine

PINNED = "2.14.1"  # where wrong variants must fail exactly the checks that they name
COMMAND_SECONDS = 120  # a command of the README: its reader waits for it


@dataclass
class Report:
    """What verification found in one lab."""

    lab: str
    problems: list[Problem] = field(default_factory=list)
    verdicts: list[tuple[str, Verdict]] = field(default_factory=list)  # (role or file, verdict)
    lacks: str = ""  # what this machine lacks to run the lab

    @property
    def holds(self) -> bool:
        return not self.problems and not self.lacks


@dataclass(frozen=True)
class Case:
    """One file to judge and what must come of it: names of checks or a state; nothing means that it must pass."""

    role: str  # "starter", "solution", "right/x.py", "wrong/y.py"
    path: Path
    expects: frozenset[str]


def verify(
    lab: Lab,
    catalog: Catalog,
    engine: Engine,
    seeds: Sequence[int] = (1,),
    cache: VerdictCache | None = None,
    device: str = "cpu",
    fresh: bool = False,
    on_step: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Report:
    """Verify every rule on `lab`; `on_step(done, total, what)` follows the progress.

    `cache` must be filled by this function alone: what it holds counts as verdicts whose evidence was in order. With
    `fresh` nothing is taken from it.
    """
    content = list(content_problems(lab, catalog))
    report = Report(lab.id, [*content, *parts_to_fill_in(lab)])
    if not content and (missing := lacking(lab, device)):
        report.lacks = missing[1]
    if content or report.lacks:
        return report
    cases = [(case, seed) for case in cases_of(lab, device) for seed in seeds]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        judged = pool.map(_Judge(lab, engine, cache, device, fresh), cases)
        for done, ((case, seed), (verdict, problems)) in enumerate(zip(cases, judged, strict=True), 1):
            on_step(done, len(cases), f"{case.role}, seed {seed}")
            report.verdicts.append((case.role, verdict))
            report.problems += [*_case_problems(lab, case, verdict), *problems]
    report.problems += [*_unbroken_checks(lab), *_command_problems(lab)]
    report.problems = list(dict.fromkeys(report.problems))  # several seeds find the same
    return report


def cases_of(lab: Lab, device: str = "cpu") -> list[Case]:
    """The starter, the solution and every variant that means something on `device`."""
    variants = [v for v in lab.variants if not (v.needs_cuda and device == "cpu")]
    return [
        Case("starter", lab.starter, lab.starter_fails),
        Case("solution", lab.solution, frozenset()),
        *(Case(f"{v.kind}/{v.path.name}", v.path, v.expects) for v in variants),
    ]


def outcome(verdict: Verdict) -> frozenset[str]:
    """The names of the checks that failed, or the state if it never came to that."""
    return verdict.failed_checks if verdict.state in (PASSED, FAILED) else frozenset([verdict.state])


# ------------------------------------------------------------------------------------------------------- case by case


@dataclass(frozen=True)
class _Judge:
    """Judges the cases of one lab, from several threads at once."""

    lab: Lab
    engine: Engine
    cache: VerdictCache | None
    device: str
    fresh: bool
    starting: Lock = field(default_factory=Lock)  # else each of the first threads would start the engine

    def __call__(self, case_and_seed: tuple[Case, int]) -> tuple[Verdict, list[Problem]]:
        """The verdict on one case, and what is wrong with its evidence; kept only where nothing is."""
        case, seed = case_and_seed
        job = Job.of_file(self.lab, case.path, seed, self.device)
        if self.cache and not self.fresh and (kept := self.cache.get(job)):
            return kept, []
        with self.starting:
            self.engine.start(self.lab)
        verdict = self.engine.judge(self.lab, case.path, seed, self.device)
        problems = list(_evidence_problems(self.lab, case, verdict))
        if self.cache and not problems:
            self.cache.put(job, verdict)
        return verdict, problems


def _case_problems(lab: Lab, case: Case, verdict: Verdict) -> Iterator[Problem]:
    got, where = outcome(verdict), f"{shown(lab, case.path)}, seed {verdict.seed}"
    declared = f"first line of {'test_checks.py' if case.role == 'starter' else 'the file'}"
    if case.expects == got:
        return
    if not case.expects:
        told = verdict.detail or "; ".join(f"{c.name}: {c.message}" for c in verdict.checks if not c.passed)
        yield Problem(where, f"must pass and is {verdict.state}; correct it or the checks: {told}")
    elif not got:
        yield Problem(where, f"passes; it must fail {listed(case.expects)}. Sharpen a check, or drop the variant")
    elif _exact(verdict):
        detail = f" {verdict.detail}" if verdict.detail else ""
        yield Problem(
            where,
            f"fails {listed(got)}; declared is {listed(case.expects)}. Correct the {declared}, or the checks.{detail}",
        )
    elif not case.expects & got:
        yield Problem(where, f"fails {listed(got)}, none of {listed(case.expects)}, which the {declared} declares")


def _exact(verdict: Verdict) -> bool:
    return verdict.device == "cpu" and verdict.versions.get("torch", "").partition("+")[0] == PINNED


def _unbroken_checks(lab: Lab) -> Iterator[Problem]:
    broken = lab.starter_fails.union(*(v.expects for v in lab.variants if v.kind == "wrong"))
    for check in lab.checks:
        if check.name not in broken:
            where = f"{shown(lab, lab.checks_path)}::{check.name}"
            yield Problem(where, "is failed by no wrong variant; write one, or drop the check")


def _evidence_problems(lab: Lab, case: Case, verdict: Verdict) -> Iterator[Problem]:
    """What lab.toml says of the evidence is so, and what the checks say rests on it."""
    if case.role not in ("starter", "solution") or not verdict.frame:
        return
    found = evidence.decode(verdict.frame)
    drawn = {*lab.figure["series"], *([lab.figure["bound"]] if "bound" in lab.figure else [])}
    asked = {p["evidence"] for p in lab.predictions if "evidence" in p} if case.role == "starter" else set()
    for key in sorted((drawn | asked) - found.keys()):
        told = f"names evidence {key!r}, which the {case.role} does not produce; correct it, or measure.py"
        yield Problem(shown(lab, lab.path / "lab.toml"), told)
    if case.role == "starter":
        yield from _prediction_problems(lab, found)
    for check in verdict.checks if case.role == "solution" else ():
        if not check.figures:
            where = f"{shown(lab, lab.checks_path)}::{check.name}"
            yield Problem(where, "records no figure; assert with at_most, at_least or equal")


def _prediction_problems(lab: Lab, found: evidence.Evidence) -> Iterator[Problem]:
    for number, prediction in enumerate(lab.predictions, 1):
        key = prediction.get("evidence")
        if key in found and not _is_answered(prediction, found):
            told = f"[[predict]] {number}: no choice is what the evidence {key!r} says; add it, or name another key"
            yield Problem(shown(lab, lab.path / "lab.toml"), told)


def _is_answered(prediction: dict, found: evidence.Evidence) -> bool:
    try:
        return right_choice(prediction, found) is not None
    except (TypeError, ValueError):  # an array, a list: nothing that a choice could be
        return False


def _command_problems(lab: Lab) -> list[Problem]:
    """The README's commands, run beside a copy of the starter, and beside one of the solution."""
    sides = ("starter", lab.starter, (0, 1)), ("solution", lab.solution, (0,))  # a starter may show its symptom by 1
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda side: list(_run_beside(lab, *side)), sides)
        return [problem for problems in found for problem in problems]


def _run_beside(lab: Lab, role: str, path: Path, allowed: tuple[int, ...]) -> Iterator[Problem]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / lab.editable).write_bytes(path.read_bytes())
        for command in readme_commands(lab):
            status, output = _run(command, folder)
            if status not in allowed or not output.strip():
                told = f"`{command}` with the {role} {_how_it_ended(status)}; correct it or the {role}: "
                yield Problem(shown(lab, lab.path / "README.md"), told + (output[-300:].strip() or "no output"))


def _how_it_ended(status: int | None) -> str:
    return f"takes longer than {COMMAND_SECONDS} s" if status is None else f"exits with {status}"


def _run(command: str, folder: str) -> tuple[int | None, str]:
    """(exit status, output); no status if it takes too long. Nothing that it started is then left behind."""
    with tempfile.TemporaryFile() as output:  # not a pipe, which a forgotten worker of the command would hold open
        try:
            process = subprocess.Popen(
                _words(command),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: quotes that do not close
            return 127, str(error)
        status = _waited(process)
        output.seek(0)
        return status, output.read().decode(errors="replace")


def _waited(process: subprocess.Popen) -> int | None:
    try:
        return process.wait(COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
            process.wait()


def _words(command: str) -> list[str]:
    """The command's words, run by this very interpreter."""
    words = shlex.split(command)
    if words[:1] == ["breakfix"]:
        words[:1] = ["python", "-m", "breakfix"]
    return [sys.executable, *words[1:]] if words[:1] == ["python"] else words


def _environment() -> dict[str, str]:
    """This process's, with the tools beside its interpreter first, such as torchrun."""
    tools = Path(sys.executable).parent
    path = os.pathsep.join(filter(None, [str(tools), os.environ.get("PATH")]))
    return os.environ | {"OMP_NUM_THREADS": ENVIRONMENT["OMP_NUM_THREADS"], "PATH": path}
