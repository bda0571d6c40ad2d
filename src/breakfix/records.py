"""One recorded run of a lab: broken and fixed, judged on the same seed. Pages show nothing that no run measured."""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from breakfix.cache import digest
from breakfix.catalog import Lab
from breakfix.evidence import decode
from breakfix.render.terminal import plain
from breakfix.verdict import NEEDS_CUDA, NEEDS_PACKAGE, NEEDS_RANKS, Verdict
from breakfix.zygote import Engine

SEED = 20
NOT_RUN = (NEEDS_CUDA, NEEDS_PACKAGE, NEEDS_RANKS)
PRINTING_SECONDS = 120  # for `python train.py`, which shows the symptom in a few


@dataclass(frozen=True)
class Run:
    """Both verdicts, what the starter prints, the evidence that the page draws and asks for, and the conditions."""

    lab: str
    code: str  # lab_code() at the time
    date: str
    device: str
    device_name: str
    broken: Verdict
    fixed: Verdict
    evidence: dict[str, dict[str, Any]]  # "broken" and "fixed", by key
    prints: str
    differences: tuple["Difference", ...] = ()  # from a run on the CPU, where this is one on another device

    @property
    def ran(self) -> bool:
        """False where something that the lab needs was not there."""
        return self.broken.state not in NOT_RUN

    def to_json(self) -> str:
        data = asdict(self) | {"broken": self.broken.to_json(), "fixed": self.fixed.to_json()}
        return json.dumps(data, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Run":
        data = json.loads(text)
        found = tuple(Difference(**d) for d in data.get("differences", ()))
        sides = {side: Verdict.from_json(data[side]) for side in ("broken", "fixed")}
        return cls(**data | sides | {"differences": found})


def record(lab: Lab, engine: Engine, device: str = "cpu") -> Run:
    """Judge starter and solution, and run the starter as a learner would; off the CPU, compare with a run on it."""
    broken, fixed = (engine.judge(lab, path, SEED, device) for path in (lab.starter, lab.solution))
    evidence = {"broken": _shown(lab, broken), "fixed": _shown(lab, fixed)}
    ran = broken.state not in NOT_RUN
    today, name = datetime.now(UTC).date().isoformat(), _device_name(device) if ran else ""
    prints = printed(lab) if ran else ""
    run = Run(lab.id, lab_code(lab), today, device, name, broken, fixed, evidence, prints)
    if ran and device != "cpu":
        run = replace(run, differences=tuple(differences(record(lab, engine), run)))
    return Run.from_json(_without_paths(run.to_json(), lab))


def printed(lab: Lab) -> str:
    """What `python train.py` prints in the learner's own folder."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, lab.id, lab.editable)
        file.parent.mkdir()
        file.write_bytes(lab.starter.read_bytes())
        try:
            out = _run_file(file)
        except subprocess.TimeoutExpired as late:
            out = (late.stdout or b"").decode(errors="replace") + f"\n(still running after {PRINTING_SECONDS} s)"
    return out.replace(f"{folder}/", "").strip()


def lab_code(lab: Lab) -> str:
    """Changes with the lab's own files, wherever it runs."""
    files = [lab.path / "lab.toml", *lab.path.glob("*.py"), *lab.solution_path.glob("*.py"), lab.checks_path]
    return digest(*(path.read_bytes() for path in sorted(files)))


def _run_file(file: Path) -> str:
    command, environment = [sys.executable, file.name], os.environ | {"OMP_NUM_THREADS": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=file.parent, env=environment, timeout=PRINTING_SECONDS, **streams)
    return done.stdout.decode(errors="replace")


def _shown(lab: Lab, verdict: Verdict) -> dict[str, Any]:
    """The evidence that the figure and the predictions name."""
    keys = [*lab.figure["series"], lab.figure.get("bound"), *(p.get("evidence") for p in lab.predictions)]
    evidence = decode(verdict.frame) if verdict.frame else {}
    return plain({key: evidence[key] for key in keys if key in evidence})


def _without_paths(text: str, lab: Lab) -> str:
    """Tracebacks name files: relative to the project, and without the place where Python is installed."""
    for place in (sys.prefix, sys.base_prefix, lab.root):
        text = text.replace(f"{place}/", "")
    return text


def _device_name(device: str) -> str:
    """`NVIDIA H200, driver 580.95.05`, or `CPU`."""
    import torch

    if not device.startswith("cuda"):
        return "CPU"
    return f"{torch.cuda.get_device_name(device)}{_driver()}"


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return ""
    return f", driver {told[0]}" if told else ""


@dataclass(frozen=True)
class Difference:
    """What another device shows otherwise than the CPU: of a side, a check's outcome or a figure of it."""

    side: str  # "broken" or "fixed"
    what: str
    cpu: Any
    other: Any


def differences(cpu: Run, other: Run, least: float = 0.1) -> list[Difference]:
    """Outcomes that differ, and figures that differ by more than `least` of the larger."""
    return [
        found
        for side in ("broken", "fixed")
        for found in _of_verdicts(side, getattr(cpu, side), getattr(other, side), least)
    ]


def _of_verdicts(side: str, cpu: Verdict, other: Verdict, least: float) -> Iterator[Difference]:
    if cpu.state != other.state:
        yield Difference(side, "state", cpu.state, other.state)
    theirs = {check.name: check for check in other.checks}
    for check in cpu.checks:
        if (its := theirs.get(check.name)) is None:
            continue
        if check.state != its.state:
            yield Difference(side, check.name, check.state, its.state)
        figures = {figure.what: figure.value for figure in its.figures}
        for figure in check.figures:
            value = figures.get(figure.what, figure.value)
            if _apart(figure.value, value, least):
                yield Difference(side, f"{check.name}: {figure.what}", figure.value, value)


def _apart(a: Any, b: Any, least: float) -> bool:
    """Whether two figures differ by more than rounding: numbers by a share of the larger, all else at all."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (a, b))
    return not math.isclose(a, b, rel_tol=least, abs_tol=1e-6) if numbers else a != b
