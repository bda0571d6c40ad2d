"""The hostile submissions once more where the grader is not root: there the sandbox is entered another way."""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from breakfix import sandbox
from breakfix.sandbox import kernel

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or sandbox.best_level() == sandbox.NONE,
    reason="takes root, to become somebody else, and namespaces",
)

HERE = Path(__file__).parent
USER = 54321
# What an ordinary user's sandbox does otherwise than root's: the rest is the same code.
BY_LEVEL = "judge_ or roots_of or environment or signal_ or kernel_ or hog_behind or plant_ or write_ or orphans"


def test_as_an_ordinary_user(tmp_path):
    """The same attacks where the grader is not root: there the sandbox is entered another way."""
    tmp_path.chmod(0o755)
    home = Path("/tmp") / f"breakfix-user-{os.getpid()}"
    home.mkdir()
    os.chown(home, USER, USER)
    arguments = ["-q", "-p", "no:cacheprovider", f"--basetemp={home}/t", "-k", BY_LEVEL + " or left or survives"]
    environment = os.environ | {"HOME": str(home), "TMPDIR": str(home), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", str(HERE / "test_hostile.py"), *arguments],
            preexec_fn=partial(become, USER), env=environment, cwd=HERE.parents[1], capture_output=True, text=True,
        )  # fmt: skip
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert (passed := re.search(r"(\d+) passed", done.stdout))
    assert int(passed[1]) > 25


def become(uid: int) -> None:
    """Be an ordinary user who can read Python and this checkout, wherever they lie."""
    kernel.unshare(kernel.NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    for place in {sys.prefix, sys.base_prefix, str(HERE.parents[1])}:
        make_reachable(Path(place).resolve())
    os.setgroups([]), os.setresgid(uid, uid, uid), os.setresuid(uid, uid, uid)


def make_reachable(place: Path) -> None:
    """Where a folder above `place` is closed to others, cover it by an open one with nothing but `place` in it."""
    closed = next((p for p in [*reversed(place.parents), place] if p.is_dir() and not p.stat().st_mode & 0o001), None)
    if closed is None or closed == place:
        return
    handle = os.open(place, os.O_PATH)
    kernel.mount("tmpfs", str(closed), "tmpfs", 0, "mode=755")
    place.mkdir(parents=True)
    kernel.mount(f"/proc/self/fd/{handle}", str(place), None, kernel.MS_BIND | kernel.MS_REC)
    os.close(handle)
