"""The hostile submissions once more at the level user: for root in a container that refuses namespaces."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_ordinary_user import HERE, make_reachable

from breakfix import sandbox
from breakfix.catalog import Catalog
from breakfix.sandbox import kernel, landlock
from breakfix.subject import Job
from breakfix.verdict import NOT_MEASURABLE
from breakfix.zygote import Engine

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or sandbox.best_level() == sandbox.NONE or landlock.abi() < 6,
    reason="takes root, Landlock of Linux 6.12, and namespaces for the test itself",
)

# What this level does otherwise than that of namespaces; what is not there: a network, and with it a process group.
BY_LEVEL = "judge_ or read_ or signal_ or write_ or plant_ or net_ or files_ or chroot or hog_t or orphans or honest"


def test_at_the_level_of_a_user():
    """A stranger's file is another user of the machine, who may read little and write less."""
    arguments = ["-q", "-p", "no:cacheprovider", "-k", f"({BY_LEVEL} or left or survives) and not process_group"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(HERE / "test_hostile.py"), *arguments],
        preexec_fn=everybody_can_read_python, env=os.environ | {"OMP_NUM_THREADS": "1", "HOSTILE_LEVEL": sandbox.USER},
        cwd=HERE.parents[1], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert (passed := re.search(r"(\d+) passed", done.stdout))
    assert int(passed[1]) > 30


def everybody_can_read_python() -> None:
    """As it is in a container; here it may lie in root's own folder."""
    kernel.unshare(kernel.NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    for place in {sys.prefix, sys.base_prefix, str(HERE.parents[1])}:
        make_reachable(Path(place).resolve())


def test_ranks_are_not_measured_without_a_network_of_their_own():
    lab = Catalog.read(HERE.parents[1] / "tests" / "fixtures" / "tiny_root")["lab91"]
    with Engine() as engine:
        verdict = engine.judge_job(Job(lab.path, lab.solution.read_bytes(), "/x.py", 7, isolation=sandbox.USER))
    assert (verdict.state, "namespaces" in verdict.detail) == (NOT_MEASURABLE, True)


def test_what_users_left_in_shared_memory_is_swept_and_nothing_else():
    names = {"hostile_dead": (1 << 30) + 2_000_000, "hostile_of_root": 0}
    try:
        for name, owner in names.items():
            path = Path("/dev/shm", name)
            path.touch()
            os.chown(path, owner, sandbox.NOBODY)
        sandbox.sweep()
        assert [name for name in names if Path("/dev/shm", name).exists()] == ["hostile_of_root"]
    finally:
        for name in names:
            Path("/dev/shm", name).unlink(missing_ok=True)
