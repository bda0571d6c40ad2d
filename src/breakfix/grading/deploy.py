"""Graders for other places: a Gradescope autograder, GitHub workflows, a Slurm array, a Kubernetes job.

Each is text from a template in which @words@ are filled in. Nothing here runs or reaches anything.
"""

import re
import shlex
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from breakfix import __version__
from breakfix.catalog import Lab, own_root
from breakfix.grading.assignment import Assignment

TEMPLATES = Path(__file__).with_name("templates")
ROOT_IN_ZIP = "root"  # of an instructor's own labs
LEFT_OUT = {"__pycache__", ".pytest_cache", ".ruff_cache"}
RUNNABLE = 0o755
TRUST = "--i-trust-these-submissions"


@dataclass(frozen=True)
class Place:
    """What a grader elsewhere must know: the class's paths as they are there, and how much it may use."""

    submissions: str = "submissions"
    assignment: str = "assignment.toml"
    results: str = "results"
    roster: str | None = None
    shards: int = 4
    workers: int = 2
    trusted: bool = False

    def words(self, labs: list[Lab]) -> dict[str, str]:
        """By name, what the templates' words stand for; everything that a shell reads is quoted."""
        memory = 2048 + self.workers * max(int(lab.bounds.memory_mib) for lab in labs)
        return {
            "submissions": shlex.quote(self.submissions), "assignment": shlex.quote(self.assignment),
            "results": shlex.quote(self.results), "shards": str(self.shards), "workers": str(self.workers),
            "roster": f"--roster {shlex.quote(self.roster)}" if self.roster else "",
            "numbers": ", ".join(map(str, range(1, self.shards + 1))), "memory": str(memory),
            "trust": TRUST if self.trusted else "", "requirement": shlex.quote(requirement(labs)),
            "labs": " ".join(lab.id for lab in labs),
        }  # fmt: skip


def requirement(labs: list[Lab]) -> str:
    """What pip installs: this version, with the extras that the labs need, and Matplotlib for the pages."""
    extras = {need for lab in labs for need in lab.needs if need in ("onnx", "serve", "quantize")} | {"plots"}
    return f"breakfix[{','.join(sorted(extras))}]=={__version__}"


def fill(template: str, words: dict[str, str]) -> str:
    """A template with its words filled in; of one that stands for nothing the blank behind it goes, too."""
    text = (TEMPLATES / template).read_text("utf-8")
    return re.sub(r"@(\w+)@( ?)", lambda match: words[match[1]] and words[match[1]] + match[2], text)


def gradescope(assignment: Assignment, labs: list[Lab], place: Place, wheels: list[Path], file: Path) -> list[str]:
    """Write the zip that Gradescope takes as an autograder; gives the names in it.

    Its assignment has no due date: Gradescope has its own, and a lateness must not count twice.
    """
    words = place.words(labs) | {"roots": f'"$root/source/{ROOT_IN_ZIP}"' if _own(labs) else '""'}
    plan = replace(assignment, due=None, percent_per_day=0, days=0).to_toml(with_key=True)
    content = {name: fill(name, words).encode() for name in ("setup.sh", "run_autograder")}
    content |= {"assignment.toml": plan.encode()} | {f"wheels/{wheel.name}": wheel.read_bytes() for wheel in wheels}
    content |= {f"{ROOT_IN_ZIP}/{name}": data for lab in _own(labs) for name, data in _files(lab).items()}
    with zipfile.ZipFile(file, "x", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.external_attr = (RUNNABLE if name in ("setup.sh", "run_autograder") else 0o644) << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return list(content)


def _own(labs: list[Lab]) -> list[Lab]:
    """The labs that do not come with the package."""
    return [lab for lab in labs if lab.root != own_root().resolve()]


def _files(lab: Lab) -> dict[str, bytes]:
    folders = (lab.path, lab.solution_path, lab.tests_path)
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        path.relative_to(lab.root).as_posix(): path.read_bytes() for path in paths if not LEFT_OUT & set(path.parts)
    }
