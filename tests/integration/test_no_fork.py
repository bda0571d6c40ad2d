"""Where processes cannot be forked (macOS, Windows) a fresh process judges: slower, and the verdict is the same."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from breakfix import child
from breakfix.catalog import Catalog, own_root
from breakfix.verdict import ERROR, FAILED, PASSED, TIMEOUT, TOO_MUCH_DATA
from breakfix.zygote import Engine, EngineFailed

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


def test_how_it_ends_is_told(lab08, tmp_path):
    """The end of what it printed, and its exit status."""
    (tmp_path / "train.py").write_text(BY_ITSELF)
    verdict = Engine().judge(lab08, tmp_path / "train.py", 7)
    assert verdict.state == ERROR
    assert "(exit status 3)" in verdict.detail
    assert verdict.log == "hello\n"


def test_bounds_of_a_fresh_process(monkeypatch):
    """The wall clock and the bytes; a timeout says where it stood."""
    monkeypatch.setattr(child, "STARTING", 0)
    monkeypatch.setattr(child.Bounds, "wall_seconds", 6)
    ended = child.run_child(partial(time.sleep, 1000), child.Bounds())
    assert (ended.state, ended.data) == (TIMEOUT, b"")
    assert "Timeout" in ended.log
    assert "in _send" in ended.log


def test_what_a_fresh_process_returned_and_printed():
    ended = child.run_child(partial(eval, "print('word') or b'bytes'"), child.Bounds())
    assert (ended.state, ended.data, ended.log, ended.exit) == (child.ENDED, b"bytes", "word\n", 0)
    ended = child.run_child(partial(eval, "1 / 0"), child.Bounds())
    assert (ended.state, ended.data, ended.exit) == (child.ENDED, b"", 1)
    assert "ZeroDivisionError" in ended.log
    assert child.run_child(partial(bytes, child.DATA_LIMIT + 1), child.Bounds()).state == TOO_MUCH_DATA


def test_a_judge_that_cannot_start_says_why(lab08, monkeypatch):
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(EngineFailed, match="Python path configuration"):
        Engine().judge(lab08, lab08.solution, 7)
