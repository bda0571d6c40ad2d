"""One recorded run of a lab: broken and fixed, judged on the same seed. Pages show what a run measured, nothing else.

    python hooks/lab_runs.py lab08 --device cuda        writes records/lab08.cuda.json, which is meant to be committed

The site itself runs every lab on a CPU when it is built, and keeps the run in .cache/runs until the lab, the engine or
a version changes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from breakfix.cache import digest, lab_digest
from breakfix.catalog import Catalog, Lab
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
        return cls(**data | {side: Verdict.from_json(data[side]) for side in ("broken", "fixed")})


def path_of(lab: Lab, folder: Path) -> Path:
    """Where in `folder` the lab's run is kept; another place once anything that it depends on has changed."""
    return folder / f"{lab.id}-{run_code(lab)}.json"


def kept(lab: Lab, folder: Path) -> Run | None:
    """The lab's run in `folder`, if nothing has changed since."""
    path = path_of(lab, folder)
    return Run.from_json(path.read_text("utf-8")) if path.exists() else None


def make(lab: Lab, engine: Engine, folder: Path) -> Run:
    """Run the lab on the CPU, and keep that run in place of older ones; one that a busy machine spoiled is not kept."""
    run = record(lab, engine)
    if run.fixed.passed or not run.ran:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{lab.id}-*.json"):
            old.unlink()
        path_of(lab, folder).write_text(run.to_json(), "utf-8")
    return run


def record(lab: Lab, engine: Engine, device: str = "cpu") -> Run:
    """Judge starter and solution, and run the starter as a learner would."""
    broken, fixed = (engine.judge(lab, path, SEED, device) for path in (lab.starter, lab.solution))
    evidence = {"broken": _shown(lab, broken), "fixed": _shown(lab, fixed)}
    prints = "" if broken.state in NOT_RUN else printed(lab)
    today = datetime.now(UTC).date().isoformat()
    run = Run(lab.id, lab_code(lab), today, device, _device_name(device), broken, fixed, evidence, prints)
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


def run_code(lab: Lab) -> str:
    """Changes with whatever a run depends on: the lab's files, the engine, the versions of what they import."""
    return digest(lab_code(lab).encode(), lab_digest(lab).encode())


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
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description="Record a run of labs in records/.")
    parser.add_argument("labs", nargs="+")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    with Engine() as engine:
        for lab in map(Catalog.read().__getitem__, arguments.labs):
            run = record(lab, engine, arguments.device)
            path = lab.root / "records" / f"{lab.id}.{arguments.device.partition(':')[0]}.json"
            path.write_text(run.to_json() + "\n", "utf-8")
            print(f"{path.name}: broken {run.broken.state}, fixed {run.fixed.state}, {run.device_name}")


if __name__ == "__main__":
    main()
