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
    files = [lab.path / "lab.toml", lab.path / "measure.py", lab.checks_path]
    return digest(_package_digest().encode(), json.dumps(versions(), sort_keys=True).encode(), *_contents(files))


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
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, job: Job, verdict: Verdict) -> None:
        """Keep `verdict`, if it was judged at all: what a machine lacks or its load broke may be otherwise next time."""
        if verdict.state not in ("passed", "failed", "error"):
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = self.folder / f"{self.key(job)}.{os.getpid()}"
            partial.write_text(json.dumps(verdict.to_json()), "utf-8")
            partial.replace(self.folder / f"{self.key(job)}.json")
        except OSError:  # a full or read-only disk costs time, nothing else
            return
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        kept = sorted(self.folder.glob("*.json"), key=lambda p: p.stat().st_mtime)
        for path in kept[: max(0, len(kept) - KEPT)]:
            path.unlink(missing_ok=True)


@lru_cache
def _package_digest() -> str:
    package = Path(__file__).parent
    return digest(*_contents(sorted([*package.glob("*.py"), *(package / "probes").glob("*.py")])))


def _contents(files: Iterable[Path]) -> list[bytes]:
    return [path.read_bytes() for path in files]
