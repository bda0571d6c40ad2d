"""The site's runs: every lab, on a CPU, kept in .cache/runs until the lab, the engine or a version changes."""

from pathlib import Path

from breakfix.cache import digest, lab_digest
from breakfix.catalog import Lab
from breakfix.records import Run, lab_code, record
from breakfix.zygote import Engine


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


def run_code(lab: Lab) -> str:
    """Changes with whatever a run depends on: the lab's files, the engine, the versions of what they import."""
    return digest(lab_code(lab).encode(), lab_digest(lab).encode())
