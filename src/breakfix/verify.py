"""What a lab must keep: every rule about its content is a check here, and its message says what the author should do."""

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from breakfix import evidence
from breakfix.cache import VerdictCache
from breakfix.catalog import Catalog, Lab, Problem, Variant
from breakfix.subject import Job
from breakfix.verdict import FAILED, PASSED, Verdict
from breakfix.zygote import ENVIRONMENT, Engine

PINNED = "2.14.1"  # where wrong variants must fail exactly the checks that they name
MIN_RIGHT, MIN_WRONG, POINTS = 3, 5, 10
STARTER_LINES = range(30, 121)
README_PARTS = ("The code", "Reproduce", "What you may change", "The contract", "What is checked")
SOLUTION_PARTS = (
    "Cause", "Evidence", "Other right fixes and what they cost", "Wrong fixes and what they break",
    "In your own code", "In the wild", "What the articles say",
)  # fmt: skip
LIBRARIES = {
    "torch",
    "torchvision",
    "torchmetrics",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "PIL",
    "fastapi",
    "httpx",
}


@dataclass
class Report:
    """What verification found in one lab."""

    lab: str
    problems: list[Problem] = field(default_factory=list)
    verdicts: list[tuple[str, Verdict]] = field(default_factory=list)  # (role or file, verdict)

    @property
    def holds(self) -> bool:
        return not self.problems


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
    on_step: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Report:
    """Verify every rule on `lab`; `on_step(done, total, what)` follows the progress."""
    report = Report(lab.id, list(content_problems(lab, catalog)))
    if report.problems:
        return report
    cases = [(case, seed) for case in cases_of(lab, device) for seed in seeds]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        judged = pool.map(lambda c: _judge(lab, c[0], c[1], engine, cache, device), cases)
        for done, ((case, seed), verdict) in enumerate(zip(cases, judged, strict=True), 1):
            on_step(done, len(cases), f"{case.role}, seed {seed}")
            report.verdicts.append((case.role, verdict))
            report.problems += _case_problems(lab, case, verdict)
    report.problems += _unbroken_checks(lab)
    report.problems += _evidence_problems(lab, engine, device)
    report.problems += _command_problems(lab)
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


# ---------------------------------------------------------------------------------------------- without running anything


def content_problems(lab: Lab, catalog: Catalog) -> Iterator[Problem]:
    """What can be seen wrong in the lab's files without running them."""
    yield from _missing_files(lab)
    if not all(path.is_file() for path in _files_of(lab)):
        return
    yield from _readme_problems(lab)
    yield from _starter_problems(lab)
    yield from _check_problems(lab)
    for variant in lab.variants:
        yield from _variant_problems(lab, variant)
    yield from _count_problems(lab)
    for name in set(lab.prerequisites) - {other.id for other in catalog}:
        yield Problem("lab.toml", f"prerequisite {name} is no lab; name one of {', '.join(o.id for o in catalog)}")


def _files_of(lab: Lab) -> list[Path]:
    solution = lab.solution_path / "README.md"
    return [lab.starter, lab.path / "README.md", lab.path / "measure.py", lab.solution, solution, lab.checks_path]


def _missing_files(lab: Lab) -> Iterator[Problem]:
    for path in _files_of(lab):
        if not path.is_file():
            yield Problem(str(path.relative_to(lab.root)), "is missing; write it (`breakfix new` shows its form)")


def _readme_problems(lab: Lab) -> Iterator[Problem]:
    for name, text, parts, placeholder in (
        ("README.md", (lab.path / "README.md").read_text("utf-8"), README_PARTS, "{alert}"),
        ("solution README.md", (lab.solution_path / "README.md").read_text("utf-8"), SOLUTION_PARTS, "{evidence}"),
    ):
        found = tuple(re.findall(r"^## (.+?)\s*$", text, re.M))
        if found != parts:
            yield Problem(name, f"has the parts {', '.join(found) or 'none'}; write exactly {', '.join(parts)}")
        if placeholder not in text:
            yield Problem(name, f"lacks {placeholder}; put it where the text of lab.toml or of a run belongs")


def _starter_problems(lab: Lab) -> Iterator[Problem]:
    source = lab.starter.read_text("utf-8")
    if len(source.splitlines()) not in STARTER_LINES:
        lines = len(source.splitlines())
        yield Problem(lab.editable, f"has {lines} lines; keep it between {STARTER_LINES[0]} and {STARTER_LINES[-1]}")
    for name in sorted(_imports(source) - LIBRARIES - sys.stdlib_module_names):
        yield Problem(lab.editable, f"imports {name}; a lab's file uses torch, its friends and at most breakfix.data")


def _imports(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {n.partition(".")[0] for n in names if not (n == "breakfix.data" or n.startswith("breakfix.data."))}


def _check_problems(lab: Lab) -> Iterator[Problem]:
    for check in lab.checks:
        if not check.says:
            yield Problem(check.name, "has no docstring; say what it demands and why it matters")
        if not isinstance(check.points, int) or check.points < 1:
            yield Problem(check.name, "is worth nothing; mark it with @check(points=N), an integer from 1")
    if (total := sum(c.points for c in lab.checks if isinstance(c.points, int))) != POINTS:
        yield Problem("test_checks.py", f"is worth {total} points in all; make it {POINTS}")
    if len(lab.checks) < 3:
        yield Problem(
            "test_checks.py", "needs three checks: the symptom is gone, the cause is gone, nothing else broke"
        )
    yield from _name_problems(lab, "test_checks.py, first line `# starter:`", lab.starter_fails)


def _variant_problems(lab: Lab, variant: Variant) -> Iterator[Problem]:
    where = f"{variant.kind}/{variant.path.name}"
    if not variant.reason:
        yield Problem(where, f"does not say why; write it in line {1 if variant.kind == 'right' else 2}, as a comment")
    if variant.kind == "wrong":
        yield from _name_problems(lab, f"{where}, first line `# wrong:`", variant.expects)


def _name_problems(lab: Lab, where: str, names: frozenset[str]) -> Iterator[Problem]:
    from breakfix.verdict import STATES

    known = {check.name for check in lab.checks} | set(STATES) - {PASSED, FAILED}
    if not names:
        yield Problem(where, f"names nothing; name what must fail: {', '.join(sorted(known))}")
    for name in sorted(names - known):
        yield Problem(where, f"names {name}, which is neither a check nor a state")


def _count_problems(lab: Lab) -> Iterator[Problem]:
    for kind, least in (("right", MIN_RIGHT), ("wrong", MIN_WRONG)):
        if (count := sum(v.kind == kind for v in lab.variants)) < least:
            yield Problem(f"{kind}/", f"holds {count} variants; write at least {least}")


# --------------------------------------------------------------------------------------------------------- by running


def _judge(lab: Lab, case: Case, seed: int, engine: Engine, cache: VerdictCache | None, device: str) -> Verdict:
    job = Job.of_file(lab, case.path, seed, device)
    kept = cache.get(job) if cache else None
    if kept:
        return kept
    verdict = engine.judge(lab, case.path, seed, device)
    if cache:
        cache.put(job, verdict)
    return verdict


def _case_problems(lab: Lab, case: Case, verdict: Verdict) -> Iterator[Problem]:
    got, where = outcome(verdict), f"{case.role}, seed {verdict.seed}"
    if case.expects == got:
        return
    if not case.expects:
        told = verdict.detail or "; ".join(f"{c.name}: {c.message}" for c in verdict.checks if not c.passed)
        yield Problem(where, f"must pass and is {verdict.state}: {told}")
    elif not got:
        yield Problem(where, f"passes; it must fail {_names(case.expects)}. Sharpen a check, or drop the variant")
    elif _exact(verdict):
        detail = f" {verdict.detail}" if verdict.detail else ""
        yield Problem(
            where,
            f"fails {_names(got)}; declared is {_names(case.expects)}. Correct the first line or the checks.{detail}",
        )
    elif not case.expects & got:
        yield Problem(where, f"fails {_names(got)}, none of the declared {_names(case.expects)}")


def _exact(verdict: Verdict) -> bool:
    return verdict.device == "cpu" and verdict.versions.get("torch", "").partition("+")[0] == PINNED


def _names(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _unbroken_checks(lab: Lab) -> Iterator[Problem]:
    broken = lab.starter_fails.union(*(v.expects for v in lab.variants if v.kind == "wrong"))
    for check in lab.checks:
        if check.name not in broken:
            yield Problem(check.name, "is failed by no wrong variant; write one, or drop the check")


def _evidence_problems(lab: Lab, engine: Engine, device: str) -> Iterator[Problem]:
    """The keys that the figure and the predictions name are in the evidence."""
    for role, path in (("starter", lab.starter), ("solution", lab.solution)):
        verdict = engine.judge(lab, path, 1, device, ask=False)
        keys = set(evidence.decode(verdict.frame)) if verdict.frame else set()
        wanted = [*lab.figure["series"], *([lab.figure["bound"]] if "bound" in lab.figure else [])]
        if role == "starter":
            wanted += [p["evidence"] for p in lab.predictions if "evidence" in p]
        if keys or verdict.passed:
            for key in sorted(set(wanted) - keys):
                yield Problem("lab.toml", f"names evidence {key!r}, which the {role} does not produce")


def _command_problems(lab: Lab) -> Iterator[Problem]:
    """The README's commands, run beside a copy of the starter, and then of the solution."""
    for role, path in (("starter", lab.starter), ("solution", lab.solution)):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / lab.editable).write_bytes(path.read_bytes())
            for command in readme_commands(lab):
                done = _run(command, folder)
                if done is None:
                    yield Problem(
                        "README.md", f"`{command}` with the {role} takes longer than two minutes; make it shorter"
                    )
                elif done.returncode not in ((0, 1) if role == "starter" else (0,)) or not done.stdout + done.stderr:
                    tail = (done.stdout + done.stderr)[-300:].strip()
                    yield Problem(
                        "README.md", f"`{command}` with the {role} exits with {done.returncode}: {tail or 'no output'}"
                    )


def readme_commands(lab: Lab) -> list[str]:
    """The lines that start with `$ ` in the README's console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```", (lab.path / "README.md").read_text("utf-8"), re.M | re.S)
    return [line[2:].strip() for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def _run(command: str, folder: str) -> subprocess.CompletedProcess | None:
    words = command.split()
    if words[0] == "breakfix":
        words = ["python", "-m", "breakfix", *words[1:]]
    if words[0] == "python":
        words[0] = sys.executable
    environment = os.environ | {"OMP_NUM_THREADS": ENVIRONMENT["OMP_NUM_THREADS"]}
    try:
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        return subprocess.CompletedProcess(words, 127, "", str(error))
