"""`pytest tests/labs/LAB --subject FILE` is ordinary pytest: the file is measured elsewhere, its checks run here."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from breakfix.catalog import Catalog, Lab, own_root
from breakfix.zygote import ENVIRONMENT

REPOSITORY = Path(__file__).parents[2]
TINY_ROOT = REPOSITORY / "tests" / "fixtures" / "tiny_root"
LAB08 = "tests/labs/lab08_loss_is_nan_sometimes"
USAGE_ERROR = 4  # pytest's own exit code
COMPLETE = (
    "lab00",
    "lab08",
)  # labs whose solution is judged by hand here; `breakfix verify` judges every file of every lab


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    """The outcome of each command line, all of them run once, two at a time: starting torch is most of it."""
    stray = tmp_path_factory.mktemp("somewhere") / "train.py"
    shutil.copy(Catalog.read(TINY_ROOT)["lab90"].solution, stray)
    with ThreadPoolExecutor(2) as pool:
        asked = {name: pool.submit(run, *line, stdin=stdin) for name, (line, stdin) in commands(stray).items()}
        return {name: answer.result() for name, answer in asked.items()}


def commands(stray: Path) -> dict[str, tuple[list[str], str]]:
    """name: (arguments, standard input)."""
    tiny = Catalog.read(TINY_ROOT)["lab90"]
    both_tiny = str(TINY_ROOT / "tests" / "labs")
    folders = [str(lab.tests_path) for lab in complete_labs()]
    return {
        "-k": ([str(tiny.tests_path), "--subject", str(tiny.solution), "-k", "note or memory"], ""),
        "-x": ([str(tiny.tests_path), "--subject", str(tiny.starter), "-x"], ""),
        "--pdb": (
            [LAB08, "--subject", "starter", "--seed", "1", "-x", "--pdb"],
            "p evidence['history.bad_steps']\nq\n",
        ),
        "no subject": ([str(tiny.tests_path)], ""),
        "missing file": ([LAB08, "--subject", "nowhere/train.py"], ""),
        "all solutions": ([*folders, "--subject", "solution"], ""),
        "one of several": ([both_tiny, "--subject", str(tiny.solution)], ""),
        "none of several": ([both_tiny, "--subject", str(stray)], ""),
        "error": ([str(tiny.tests_path), "--subject", str(broken(stray))], ""),
    }


def complete_labs() -> list[Lab]:
    catalog = Catalog.read(own_root())
    return [catalog[name] for name in COMPLETE]


def broken(stray: Path) -> Path:
    path = stray.with_name("broken.py")
    path.write_text("def answer(x):\n    raise ValueError('mine')\n")
    return path


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=REPOSITORY, env=os.environ | ENVIRONMENT, input=stdin, capture_output=True, text=True,
    )  # fmt: skip


def summary(done: subprocess.CompletedProcess) -> str:
    return done.stdout.splitlines()[-1]


def test_k_chooses_checks(by_hand):
    done = by_hand["-k"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 1 deselected" in summary(done)


def test_x_stops_at_the_first_failed_check(by_hand):
    """The assertion is shown as pytest shows it, with the figure."""
    done = by_hand["-x"]
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in summary(done)
    assert "passed" not in summary(done)
    assert "largest error: 1.0, at most 1e-09" in done.stdout


def test_pdb_stops_where_the_evidence_is(by_hand):
    done = by_hand["--pdb"]
    after = done.stdout.partition("(Pdb) ")[2]
    assert after.split()[0].isdecimal(), done.stdout + done.stderr
    assert int(after.split()[0]) > 0  # steps of the starter whose loss is not finite


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no subject", "checks judge a file: say which with --subject FILE (or solution, or starter)"),
        ("missing file", "--subject nowhere/train.py: there is no such file"),
        ("none of several", "checks of several labs, one file: name the lab's folder under tests/labs"),
    ],
)
def test_a_usage_error_is_told_in_one_line(by_hand, name, words):
    done = by_hand[name]
    assert done.returncode == USAGE_ERROR, done.stdout + done.stderr
    assert f"ERROR: {words}" in done.stderr.splitlines()
    assert "Traceback" not in done.stdout + done.stderr


def test_all_solutions(by_hand):
    done = by_hand["all solutions"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{sum(len(lab.checks) for lab in complete_labs())} passed" in summary(done)


def test_one_file_and_several_labs(by_hand):
    """The file's folder says whose it is."""
    done = by_hand["one of several"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in summary(done)


def test_a_file_without_evidence_fails_every_check_with_its_own_words(by_hand):
    done = by_hand["error"]
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 errors" in summary(done)
    assert 'broken.py", line 2, in answer' in done.stdout
    assert "ValueError: mine" in done.stdout
    assert "breakfix/subject.py" not in done.stdout
