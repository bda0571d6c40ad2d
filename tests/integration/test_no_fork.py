"""Where processes cannot be forked (macOS, Windows) a fresh process judges: slower, and the verdict is the same."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from breakfix import child
from breakfix.catalog import Catalog, own_root
from breakfix.verdict import ERROR, FAILED, PASSED, TIMEOUT
from breakfix.zygote import Engine, EngineFailed

LOOPS = "def answer(x):\n    while True:\n        pass\n"
BY_ITSELF = "import os\nprint('hello', flush=True)\nos._exit(3)\n"


@pytest.fixture(autouse=True)
def no_fork(monkeypatch):
    """The variable is for the fresh processes, the attribute for this one."""
    monkeypatch.setenv("BREAKFIX_NO_FORK", "1")
    monkeypatch.setattr(child, "CAN_FORK", False)


@pytest.fixture(scope="module")
def lab08():
    return Catalog.read(own_root())["lab08"]


def test_the_same_verdicts(lab08):
    with Engine() as engine, ThreadPoolExecutor(2) as pool:
        solution, starter = pool.map(lambda path: engine.judge(lab08, path, 7), [lab08.solution, lab08.starter])
    assert (solution.state, solution.points) == (PASSED, (10, 10))
    assert (starter.state, starter.failed_checks) == (FAILED, lab08.starter_fails)
    assert solution.outside.keys() >= {"wall_seconds"}
    assert "maxrss_mib" not in solution.outside  # nobody has seen it from outside


def test_how_it_ends_is_told(lab08, tmp_path, monkeypatch):
    """The end of what it printed, and its exit status."""
    (tmp_path / "train.py").write_text(BY_ITSELF)
    verdict = Engine().judge(lab08, tmp_path / "train.py", 7)
    assert verdict.state == ERROR
    assert "(exit status 3)" in verdict.detail
    assert verdict.log == "hello\n"


def loop() -> bytes:
    while True:
        pass


def leave_a_word() -> bytes:
    print("word")
    return b"bytes"


def stuff() -> bytes:
    return bytes(child.DATA_LIMIT + 1)


def test_bounds_of_a_fresh_process(monkeypatch):
    """The wall clock and the bytes; a timeout says where it stood."""
    monkeypatch.setattr(child, "STARTING", 0)
    monkeypatch.setattr(child.Bounds, "wall_seconds", 4)
    ended = child.run_child(loop, child.Bounds())
    assert ended.state == TIMEOUT
    assert f'File "{Path(__file__)}", line' in ended.log
    monkeypatch.undo()
    monkeypatch.setattr(child, "CAN_FORK", False)
    assert child.run_child(leave_a_word, child.Bounds()).data == b"bytes"
    assert child.run_child(leave_a_word, child.Bounds()).log == "word\n"
    assert child.run_child(stuff, child.Bounds()).state == "too much data"


def test_a_judge_that_cannot_start_says_why(lab08, monkeypatch):
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(EngineFailed, match="Python path configuration"):
        Engine().judge(lab08, lab08.solution, 7)
