"""Verdicts kept by the content that they depend on, so that nothing unchanged is judged twice."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from breakfix.catalog import Lab
from breakfix.judge import versions
from breakfix.subject import Job
from breakfix.verdict import Verdict

KEPT = 5000  # verdicts, a few KiB each
ANY_SEED = -1  # a job at this seed stands for the last verdict on its content, whatever the seed was


def digest(*parts: bytes) -> str:
    """A short name for a content: equal if and only if all parts are."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "little") + part)
    return sha.hexdigest()[:32]


def lab_digest(lab: Lab) -> str:
    """Changes with whatever a verdict of this lab depends on, the subject and the seed apart."""
    return digest(_package_digest().encode(), json.dumps(versions(), sort_keys=True).encode(), *_asking_side(lab))


def user_cache() -> Path:
    """Where this user's caches belong."""
    home = Path.home()
    default = {"darwin": home / "Library/Caches", "win32": home / "AppData/Local"}.get(sys.platform, home / ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "breakfix"


class VerdictCache:
    """Verdicts in a folder, one JSON file each; whatever is wrong with a file, it is simply judged again."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder or user_cache() / "verdicts"

    def key(self, job: Job) -> str:
        """The content that a verdict on `job` depends on, the seed included."""
        return digest(lab_digest(job.lab).encode(), job.source, f"{job.path} {job.seed} {job.device}".encode())

    def get(self, job: Job) -> Verdict | None:
        """The verdict kept for `job`."""
        try:
            return Verdict.from_json(json.loads((self.folder / f"{self.key(job)}.json").read_text("utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def put(self, job: Job, verdict: Verdict) -> None:
        """Keep `verdict`, if it was judged at all: what a machine lacks or its load broke may differ next time."""
        if verdict.state not in ("passed", "failed", "error"):
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = self.folder / f"{self.key(job)}.{os.getpid()}"
            partial.write_text(json.dumps(verdict.to_json()), "utf-8")
            partial.replace(self.folder / f"{self.key(job)}.json")
            self._forget_oldest()
        except OSError:  # a full or read-only disk, or another process that forgets too, costs time and nothing else
            return

    def _forget_oldest(self) -> None:
        kept = sorted(self.folder.glob("*.json"), key=lambda p: p.stat().st_mtime)
        for path in kept[: max(0, len(kept) - KEPT)]:
            path.unlink(missing_ok=True)


@lru_cache
def _package_digest() -> str:
    package = Path(__file__).parent
    return digest(
        *_contents(package, [p for folder in ("", "probes", "sandbox") for p in (package / folder).glob("*.py")])
    )


def _asking_side(lab: Lab) -> list[bytes]:
    """Whatever lies beside lab.toml and beside the checks, what is judged and what only people read apart."""
    beside = [*lab.path.rglob("*"), *lab.tests_path.glob("*")]
    apart = {lab.starter, lab.path / "README.md"}
    return _contents(lab.root, [p for p in beside if p.is_file() and p not in apart and "__pycache__" not in p.parts])


def _contents(folder: Path, files: Iterable[Path]) -> list[bytes]:
    """Name and content of each file: a file that is renamed is another one."""
    named = [(path.relative_to(folder).as_posix().encode(), path.read_bytes()) for path in sorted(files)]
    return [part for pair in named for part in pair]
