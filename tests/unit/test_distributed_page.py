"""The tables of docs/distributed.md are what the labs' files do now."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "distributed.md"
SCRIPT = ROOT / "hooks" / "distributed_tables.py"


@pytest.mark.skipif(sys.platform != "linux", reason="the labs' files fork their ranks, which is safe on Linux only")
def test_the_page_agrees_with_the_code_and_a_stale_one_is_found(tmp_path):
    stale = tmp_path / "stale.md"
    text = PAGE.read_text("utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| 10 Gbit/s Ethernet | lab20, fixed |"))
    stale.write_text(text.replace(row, row[:-2] + "1 |"), "utf-8")
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check", PAGE, stale],
        capture_output=True, text=True, timeout=600, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    told = "run `python hooks/distributed_tables.py` and read what has changed"
    assert (done.returncode, done.stdout.split()) == (1, [str(stale)]), f"{told}\n{done.stderr[-2000:]}"
