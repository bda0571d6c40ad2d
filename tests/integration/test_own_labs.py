"""An instructor's own lab in a root of her own, written, assigned and graded by the commands of the teaching page."""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from breakfix import sandbox
from breakfix.catalog import ROOTS_VARIABLE

PAGE = Path(__file__).parents[2] / "docs" / "teaching.md"
pytestmark = [
    pytest.mark.skipif(not PAGE.is_file(), reason="this is not a checkout"),
    pytest.mark.skipif(not shutil.which("bash"), reason="the page shows bash"),
    pytest.mark.skipif(sandbox.best_level() == sandbox.NONE, reason="this machine cannot make namespaces"),
]


def test_the_pages_commands_grade_a_lab_of_ones_own(tmp_path):
    section = PAGE.read_text("utf-8").split("\n## Your own labs\n")[1]
    block = re.search(r"^```console\n(.*?)^```", section, re.S | re.M)[1]
    script = "set -e\n" + "".join(line.removeprefix("$ ") for line in block.splitlines(keepends=True))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment[ROOTS_VARIABLE] = ""
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "1 behaves like the file as it was given" in done.stdout
    page = (tmp_path / "results" / "feedback-html" / "ada.html").read_text("utf-8")
    assert page.count("<svg") == 2
    own = environment | {ROOTS_VARIABLE: str(tmp_path / "team-labs")}
    subprocess.run(["bash", "-c", "breakfix export results --as csv"], cwd=tmp_path, env=own, check=True)
    with (tmp_path / "results" / "grades.csv").open() as file:
        assert {(row["student"], row["lab"], row["state"]) for row in csv.DictReader(file)} == {
            ("ada", "lab00", "failed"),
            ("ada", "lab90", "failed"),
        }
