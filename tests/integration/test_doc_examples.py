"""Every example on the page about the probes runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "probes.md"
EXAMPLES = re.findall(r"^## (\w+).*?$|^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)


def cases():
    probe = ""
    for heading, code in EXAMPLES:
        probe = heading or probe
        if code:
            linux = pytest.mark.skipif(probe == "loader" and sys.platform != "linux", reason="loader reads /proc")
            yield pytest.param(code, id=f"{probe}-{code.count(chr(10))}-lines", marks=linux)


@pytest.mark.parametrize("code", list(cases()))
def test_example_runs(code, tmp_path):
    file = tmp_path / "example.py"
    file.write_text(code, "utf-8")
    done = subprocess.run([sys.executable, file], cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "print(" not in code or done.stdout.strip()
