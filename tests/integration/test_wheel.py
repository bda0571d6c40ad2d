"""A wheel, built and installed elsewhere, does what a checkout does: it carries the labs and nothing that lay about."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy
import pytest
import rich
import torch
import typer

from breakfix.catalog import Catalog, own_root

REPOSITORY = Path(__file__).parents[2]
CARRIED = ("labs", "solutions", "tests/labs", "datasets")
LITTER = (
    "labs/.venv/lib/site.py", "labs/lab08_loss_is_nan_sometimes/__pycache__/measure.cpython-311.pyc",
    "src/breakfix/__pycache__/cache.pyc", "tests/labs/.pytest_cache/README.md", "solutions/.ruff_cache/x",
)  # fmt: skip

pytestmark = pytest.mark.skipif(not (REPOSITORY / "pyproject.toml").is_file(), reason="this is not a checkout")


def done(*command: str | Path, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=300, **options)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of this checkout in which things lie about, as they do after work."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("src", *CARRIED):
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, copy / name)
    for name in ("pyproject.toml", "README.md", ".gitignore"):
        shutil.copy(REPOSITORY / name, copy)
    for name in LITTER:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).touch()
    return copy


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    offline = ("--no-build-isolation", "--no-deps", "--no-index")
    built = done(sys.executable, "-m", "pip", "wheel", *offline, "-w", out, checkout)
    assert built.returncode == 0, built.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A fresh environment with the wheel; torch and its friends are lent by this one, and its breakfix is not."""
    folder = tmp_path_factory.mktemp("elsewhere") / "environment"
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    put = done(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    assert put.returncode == 0, put.stderr
    lent = dict.fromkeys(str(Path(m.__file__).parents[1]) for m in (torch, numpy, rich, typer, pytest))
    own = done(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").stdout.strip()
    (Path(own) / "lent.pth").write_text("\n".join(lent) + "\n", "utf-8")
    return python


@pytest.fixture
def breakfix(installed, tmp_path):
    """The installed command, in a learner's folder and a home of its own."""
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "BREAKFIX_ROOTS": ""}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | home
    (folder := tmp_path / "learning").mkdir()
    program = installed.with_name("breakfix.exe" if os.name == "nt" else "breakfix")
    return lambda *arguments: done(program, *arguments, cwd=folder, env=environment)


def test_the_wheel_carries_every_file_of_every_lab_and_no_litter(checkout, wheel):
    names = zipfile.ZipFile(wheel).namelist()
    content = {n.removeprefix("breakfix/content/") for n in names if n.startswith("breakfix/content/")}
    there = {
        path.relative_to(checkout).as_posix()
        for name in CARRIED
        for path in (checkout / name).rglob("*")
        if path.is_file() and not {"__pycache__", ".pytest_cache", ".ruff_cache", ".venv"} & set(path.parts)
    }
    assert content == there
    for kind in ("labs", "solutions", "tests/labs"):
        assert any(n.startswith(f"{kind}/lab08_loss_is_nan_sometimes/") for n in content)
    assert not [n for n in names if any(part in n for part in (".venv", "__pycache__", ".pyc", "_cache/"))]
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {"breakfix"}


def test_the_installed_labs_are_its_own(checkout, installed, breakfix):
    where = done(installed, "-c", "from breakfix.catalog import own_root; print(own_root())").stdout.strip()
    assert Path(where).parts[-2:] == ("breakfix", "content")
    assert not Path(where).is_relative_to(own_root())
    listed = json.loads(breakfix("list", "--json").stdout)
    assert [row["lab"] for row in listed] == [lab.id for lab in Catalog.read(checkout)]


def test_start_check_and_demo_from_another_folder(breakfix, tmp_path):
    started = json.loads(breakfix("start", "lab08", "--json").stdout)
    assert Path(started["file"]) == tmp_path / "learning" / "lab08" / "train.py"
    checked = breakfix("check", "lab08", "--json")
    assert (checked.returncode, json.loads(checked.stdout)["state"]) == (1, "failed"), checked.stderr
    shown = breakfix("demo", "lab08", "--device", "cpu", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)[0]["fixed"]["state"] == "passed"
