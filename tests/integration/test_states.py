"""Every state of a verdict, each provoked by a file that somebody could hand in; and nothing of it is left."""

import getpass
import os
import re
import shutil
import signal
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from breakfix import child, evidence, judge
from breakfix.catalog import Catalog, Lab
from breakfix.subject import Job
from breakfix.verdict import (
    ERROR,
    FAILED,
    NEEDS_CUDA,
    NEEDS_PACKAGE,
    NEEDS_RANKS,
    NOT_MEASURABLE,
    OUT_OF_MEMORY,
    PASSED,
    TIMEOUT,
    TOO_MUCH_DATA,
)
from breakfix.zygote import Engine, EngineFailed, Zygote

pytestmark = pytest.mark.skipif(not child.CAN_FORK, reason="the warm process and what is seen from outside need Linux")

TINY_ROOT = Path(__file__).parents[1] / "fixtures" / "tiny_root"
SEED = 7
RIGHT = "\n\ndef answer(x):\n    return 2 * x + 1\n"
WRONG = "\n\ndef answer(x):\n    return 0 * x\n"


@dataclass
class Traces:
    """How to know what the tests of this file have started: a mark in its environment, the folder of its files."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    engines: list[Engine] = field(default_factory=list)

    def processes(self) -> set[int]:
        """All that carry the mark, or whose parent does (nobody may look into the environment of a judge)."""
        marked = {p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._carries(p)}
        family = marked | {p.pid for p in child._processes().values() if p.parent in marked}
        return family - {zygote.process.pid for zygote in self._zygotes()}

    def _zygotes(self) -> list[Zygote]:
        return [zygote for engine in self.engines for zygote in engine.zygotes.values() if zygote.process]

    def files(self) -> set[str]:
        """What lies in the folder, in those of the engines, and in shared memory."""
        engines_own = {"socket", "log", f"torchinductor_{getpass.getuser()}"}
        folders = [Path(zygote.folder.name) for zygote in self._zygotes()]
        found = {
            path for folder in (self.folder, *folders) for path in folder.iterdir() if path.name not in engines_own
        }
        shared = {path for path in Path("/dev/shm").iterdir() if not self._somebody_elses(path.name)}
        return {str(path) for path in found | shared} - {str(folder) for folder in folders}

    def _somebody_elses(self, name: str) -> bool:
        """Whether a piece of shared memory belongs to a process that these tests have not started."""
        pid = re.match(r"torch_(\d+)_", name)
        return bool(pid) and Path(f"/proc/{pid[1]}").exists() and not self._carries(int(pid[1]))

    def _carries(self, pid: int) -> bool:
        try:
            return f"BREAKFIX_TEST={self.mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # ended, or not ours
            return False


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    tmp_path_factory.getbasetemp()  # pytest's own temporary files are elsewhere
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="bf-") as folder:
        traces = Traces(Path(folder))
        patch.setenv("BREAKFIX_TEST", traces.mark)
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield traces


@pytest.fixture(scope="module")
def engine(traces):
    with Engine() as engine:
        traces.engines.append(engine)
        yield engine


@pytest.fixture(scope="module")
def other_engine(traces):
    """One that tests may treat badly: it is started when first asked, in an odd environment."""
    far_away = traces.folder / ("very" * 20)
    far_away.mkdir()
    with pytest.MonkeyPatch.context() as patch, Engine() as engine:
        patch.setattr(tempfile, "tempdir", str(far_away))
        patch.setenv("PYTEST_ADDOPTS", "-x --maxfail=1 -k nothing")
        patch.setenv("PYTEST_PLUGINS", "nowhere")
        traces.engines.append(engine)
        yield engine


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Catalog.read(TINY_ROOT)["lab90"]


@pytest.fixture(autouse=True)
def nothing_left(traces):
    """After every test: no process but the warm ones, no file."""
    before = traces.files()
    yield
    eventually_none(traces.processes)
    eventually_none(lambda: traces.files() - before)


def eventually_none(left) -> None:
    """A judge ends just after its answer: wait for that, but not for ever."""
    deadline = time.monotonic() + 10
    while left() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left() == set()


@pytest.fixture
def verdict_on(engine, lab, tmp_path):
    """Judge a source, written to a file of that name."""

    def verdict_on(source: str | bytes, name: str = "train.py", lab: Lab = lab):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
        return engine.judge(lab, path, SEED)

    return verdict_on


@pytest.fixture
def roomy(changed_lab) -> Lab:
    """The tiny lab with more time: for what must not break another bound first."""
    return changed_lab("labs/lab90_answer/lab.toml", lambda toml: toml.replace("cpu_seconds = 0.4", "cpu_seconds = 5"))


@pytest.fixture
def changed_lab(tmp_path):
    """A copy of the tiny lab with one of its files edited."""

    def changed_lab(file: str, edit) -> Lab:
        root = tmp_path / "root"
        shutil.copytree(TINY_ROOT, root)
        path = root / file
        path.write_text(edit(path.read_text() if path.exists() else ""))
        return Catalog.read(root)["lab90"]

    return changed_lab


# -------------------------------------------------------------------------------------------------------- judged at all


def test_the_solution_passes(engine, lab):
    verdict = engine.judge(lab, lab.solution, SEED)
    assert (verdict.state, verdict.points, verdict.exit_code, verdict.detail) == (PASSED, (10, 10), 0, "")
    assert [c.name for c in verdict.checks] == ["test_answer", "test_note", "test_memory"]
    assert verdict.checks[0].says == "Every answer is right."
    assert [(f.what, f.relation, f.holds) for f in verdict.checks[0].figures] == [("largest error", "<=", True)]
    assert {"cpu_seconds", "wall_seconds", "maxrss_mib", "idle_maxrss_mib"} <= verdict.outside.keys()
    assert evidence.decode(verdict.frame)["answer"].shape == (16,)


def test_the_starter_fails_what_it_declares(engine, lab):
    verdict = engine.judge(lab, lab.starter, SEED)
    assert (verdict.state, verdict.points, verdict.exit_code) == (FAILED, (4, 10), 1)
    assert verdict.failed_checks == lab.starter_fails == {"test_answer"}
    assert verdict.checks[0].message == "largest error: 1.0, at most 1e-09"


def test_evidence_alone_is_not_checked(engine, lab):
    verdict = engine.judge(lab, lab.starter, SEED, ask=False)
    assert (verdict.state, verdict.checks) == (PASSED, ())
    assert evidence.decode(verdict.frame)["note"] == "none"


def test_the_seed_decides_the_inputs(engine, lab):
    frames = [engine.judge(lab, lab.solution, seed).frame for seed in (1, 1, 2)]
    assert frames[0] == frames[1] != frames[2]


def test_nan_fails(verdict_on):
    """A figure that is nan is below no bound."""
    verdict = verdict_on("def answer(x):\n    return x * float('nan')\n")
    assert (verdict.state, verdict.failed_checks) == (FAILED, {"test_answer"})
    assert str(verdict.checks[0].figures[0].value) == "nan"


def test_inside_and_outside_disagree(verdict_on):
    """Never a pass, and no accusation."""
    verdict = verdict_on("SEEN_MIB = 1e6" + RIGHT)
    assert (verdict.state, verdict.points, verdict.exit_code) == (NOT_MEASURABLE, (0, 10), 5)
    assert "seen 1000000.0 MiB" in verdict.checks[2].message


def test_a_failed_check_decides_before_what_could_not_be_measured(verdict_on):
    assert verdict_on("SEEN_MIB = 1e6" + WRONG).state == FAILED


# ----------------------------------------------------------------------------------------------------- its own troubles

TROUBLES = {
    "exit 0 at import": ("import os\nos._exit(0)\n", ["ended (exit status 0) before the measurement did"]),
    "exit 3 when called": ("import os\ndef answer(x):\n    os._exit(3)\n", ["(exit status 3)"]),
    "killed": ("import os\nos.kill(os.getpid(), 11)\n", ["killed: Segmentation fault"]),
    "sys.exit": ("import sys\n\nsys.exit('bye')\n", ['train.py", line 3', "SystemExit: bye"]),
    "KeyboardInterrupt": ("def answer(x):\n    raise KeyboardInterrupt\n", ['train.py", line 2', "KeyboardInterrupt"]),
    "SyntaxError": ("x = 1\ndef answer(x:\n", ['train.py", line 2', "def answer(x:", "SyntaxError"]),
    "missing import": ("import torch\nimport nowhere\n", ['train.py", line 2', "No module named 'nowhere'"]),
    "missing function": ("", ["Contract: train.py must define answer(x) -> Tensor; it has none of that name"]),
    "no function": ("answer = 42\n", ["Contract: ", "there answer is 42"]),
    "wrong type": (
        "def answer(x):\n    return 'forty-two'\n",
        ["Contract: answer must return a tensor [16]; it returned 'forty-two'"],
    ),
    "unreadable data": ("open(__file__, 'rb').read().decode('utf-16')\nb'\\xff'.decode()\n", ["UnicodeDecodeError"]),
    "endless recursion": ("def answer(x):\n    return answer(x)\n", ["RecursionError", "Previous line repeated"]),
    "reads input": ("input()\n", ["EOFError"]),
    "evil error": (
        "class Evil(Exception):\n    def __str__(self):\n        raise SystemExit\n\n\nraise Evil\n",
        ['train.py", line 6'],
    ),
    "no evidence": ("NOTE = object()" + RIGHT, ["TypeError: evidence 'note' is a object"]),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_error_with_the_learners_own_words(verdict_on, name):
    source, words = TROUBLES[name]
    verdict = verdict_on(source)
    assert (verdict.state, verdict.points, verdict.exit_code, verdict.frame) == (ERROR, (0, 0), 1, b"")
    assert [word for word in words if word not in verdict.detail] == []
    if "train.py" in verdict.detail:  # then her own lines are all that she sees
        assert "breakfix/subject.py" not in verdict.detail.replace(os.sep, "/")


NOT_PYTHON = {
    "binary": bytes(range(128, 256)),
    "elf": Path("/proc/self/exe").read_bytes()[:4096] if child.CAN_FORK else b"",
    "utf-16": RIGHT.encode("utf-16"),
    "null bytes": RIGHT.encode() + b"\0",
    "unknown coding": b"# coding: klingon\n" + RIGHT.encode(),
    "late bad byte": RIGHT.encode() + b"# \xff\n",
}


@pytest.mark.parametrize("name", NOT_PYTHON)
def test_a_file_that_is_not_python(verdict_on, tmp_path, name):
    verdict = verdict_on(NOT_PYTHON[name])
    assert verdict.state == ERROR
    assert verdict.detail.startswith(f"{tmp_path}/train.py is not a text file")
    assert "Traceback" not in verdict.detail


@pytest.mark.parametrize(
    "source",
    [
        b"\xef\xbb\xbf" + RIGHT.encode(),
        RIGHT.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + RIGHT.replace("\n", "\r\n").encode(),
        RIGHT.replace("\n", "\r").encode(),
        b"# coding: latin-1\nWHO = '\xe9'" + RIGHT.encode(),
        "变量 = '损失'".encode() + RIGHT.encode(),
        RIGHT.rstrip().encode(),
    ],
    ids=["BOM", "CRLF", "BOM and CRLF", "CR", "latin-1", "Chinese", "no last newline"],
)
def test_a_file_as_windows_and_old_editors_write_it(verdict_on, source):
    assert verdict_on(source).state == PASSED


def test_the_shown_line_is_the_right_one(verdict_on):
    """Whatever ends lines, and although a form feed and a line separator do not."""
    verdict = verdict_on(
        b"x = '''\x0c\xe2\x80\xa8'''\r\n\r\ndef answer(x):\r\n    raise ValueError('here')  # this\r\n"
    )
    assert "train.py\", line 4, in answer\n    raise ValueError('here')  # this\n" in verdict.detail


@pytest.mark.parametrize(
    "name",
    ["random.py", "torch.py", "colorsys.py", "measure.py", "my train-v1.2 (copy).py", "训练/ünï ‘q’.py", "noext"],
)
def test_any_file_name(verdict_on, name):
    """Also that of a module which it imports itself, whether that has been imported already or not."""
    source = "import colorsys, random, torch\nused = colorsys.rgb_to_hsv, torch.rand, random.random"
    assert verdict_on(source + RIGHT, name).state == PASSED


# ---------------------------------------------------------------------------------------------------------- where it is


def test_a_file_that_is_not_there(engine, lab, tmp_path):
    with pytest.raises(FileNotFoundError):
        engine.judge(lab, tmp_path / "train.py", SEED)
    with pytest.raises(IsADirectoryError):
        engine.judge(lab, tmp_path, SEED)


def test_a_relative_path(engine, lab, tmp_path, monkeypatch):
    """It is relative to whoever asks, not to the warm process, and shown in full."""
    (tmp_path / "train.py").write_text("raise ValueError(__file__)\n")
    monkeypatch.chdir(tmp_path)
    verdict = engine.judge(lab, Path("train.py"), SEED)
    assert verdict.detail.count(f"{tmp_path}/train.py") == 2


def test_a_folder_that_may_not_be_read(lab, tmp_path):
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "train.py").write_text(RIGHT)
    (tmp_path / "closed").chmod(0)
    ended = child.run_child(partial(_read_as_nobody, lab, tmp_path / "closed" / "train.py"), child.Bounds())
    (tmp_path / "closed").chmod(0o700)
    assert ended.data == b"PermissionError"


def _read_as_nobody(lab: Lab, path: Path) -> bytes:
    if os.getuid() == 0:
        os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
    try:
        Job.of_file(lab, path, SEED)
    except OSError as error:
        return type(error).__name__.encode()
    return b"read"


# --------------------------------------------------------------------------------------------------------------- bounds


def test_an_endless_loop(verdict_on, tmp_path):
    """A timeout that says on which line of her file it stood."""
    verdict = verdict_on("def spin():\n    while True:\n        pass\n\n\ndef answer(x):\n    spin()\n")
    assert (verdict.state, verdict.exit_code) == (TIMEOUT, 4)
    assert f'it stood at File "{tmp_path}/train.py", line 7 in answer' in verdict.detail
    assert any(f'"{tmp_path}/train.py", line {n} in spin' in verdict.detail for n in (2, 3))
    assert "allowed: 0.4 CPU seconds, 12 s, 600 MiB" in verdict.detail


def test_an_endless_loop_in_c_in_a_file_of_any_name(verdict_on, tmp_path):
    verdict = verdict_on("print('hello')\n\n\ndef answer(x):\n    sum(range(10**15))\n", "训练/ünï.py")
    assert verdict.state == TIMEOUT
    assert f'it stood at File "{tmp_path}/训练/ünï.py", line 5 in answer' in verdict.detail
    assert verdict.log.startswith("hello\n")


def test_what_it_printed_is_not_taken_for_where_it_stood(verdict_on):
    verdict = verdict_on(
        "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\nwhile 1:\n    pass\n"
    )
    assert verdict.state == TIMEOUT
    assert "line 3" in verdict.log
    assert "line 3" not in verdict.detail


DEADLOCK = """
import os
import tempfile


def rank_one(fd):
    os.read(fd, 1)


def answer(x):
    tempfile.mkdtemp()
    end, other_end = os.pipe()
    if os.fork() == 0:
        rank_one(end)
    os.wait()
"""


def test_a_deadlocked_rank(verdict_on):
    """Nobody uses any CPU time, so the wall clock ends it; both processes say where they are."""
    verdict = verdict_on(DEADLOCK)
    assert verdict.state == TIMEOUT
    assert "line 7 in rank_one" in verdict.detail, verdict.log
    assert "line 15 in answer" in verdict.detail


HOG = """
import mmap

held = []


def answer(x):
    while True:
        held.append(mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000))  # populated
"""


def test_a_memory_hog(verdict_on, roomy):
    verdict = verdict_on(HOG, lab=roomy)
    assert (verdict.state, verdict.exit_code) == (OUT_OF_MEMORY, 4)


def test_a_hog_that_shares_the_work(verdict_on, roomy):
    """The bound is on the family: two processes with half each are too much as well."""
    source = "import os\n" + HOG.replace("def answer(x):\n", "def answer(x):\n    os.fork()\n")
    assert verdict_on(source, lab=roomy).state == OUT_OF_MEMORY


def test_a_flood_of_output(verdict_on, roomy):
    """60 MB are no reason not to be judged; the end of them is kept."""
    verdict = verdict_on("for _ in range(60):\n    print('x' * 2**20)\nprint('last words')" + RIGHT, lab=roomy)
    assert verdict.state == PASSED
    assert len(verdict.log) == child.LOG_LIMIT
    assert verdict.log.endswith("xxx\nlast words\n")


def test_an_endless_flood(verdict_on):
    """However fast it comes, the judge goes on looking at the clock, and can still ask where it stands."""
    verdict = verdict_on("import os\nline = b'x' * 2**20\nwhile True:\n    os.write(1, line)\n")
    assert verdict.state == TIMEOUT
    assert len(verdict.log) <= child.LOG_LIMIT


def test_evidence_that_is_too_large(verdict_on):
    verdict = verdict_on("NOTE = 'x' * 5_000_000" + RIGHT)
    assert (verdict.state, verdict.exit_code) == (TOO_MUCH_DATA, 4)
    assert "send samples. Largest: note (5000002 bytes)" in verdict.detail


def test_a_pipe_that_is_stuffed(verdict_on):
    verdict = verdict_on("import os\nwhile True:\n    os.write(3, b'E' * 2**20)\n")
    assert verdict.state == TOO_MUCH_DATA


# ---------------------------------------------------------------------------------------------- what is not meant to be

FORGED = """
import os

import numpy as np

from breakfix.evidence import encode

frame = encode({"answer": np.zeros(16), "note": "none", "seen_mib": 0})
os.write(3, %s)
"""


@pytest.mark.parametrize(
    ("sent", "then", "state"),
    [
        ("b'E' + frame", "os._exit(0)", FAILED),  # the questions are secret
        ("b'E' + frame", "os._exit(1)", ERROR),
        ("b'E' + frame", "", ERROR),  # its own frame, then the real one
        ("b'E' + frame[:-1]", "os._exit(0)", ERROR),
        ("b'X' + frame", "os._exit(0)", ERROR),
        ("b'L' + frame", "os._exit(0)", TOO_MUCH_DATA),
        ("b'passed'", "os._exit(0)", ERROR),
        ("b'E'", "", ERROR),
    ],
)
def test_a_frame_of_its_own_is_never_a_pass(verdict_on, sent, then, state):
    verdict = verdict_on(FORGED % sent + then + RIGHT)
    assert verdict.state == state
    assert not verdict.passed
    assert verdict.points[0] < 10


LIARS = """
import numpy as np
import torch


class Text(str):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash("none")

    def __str__(self):
        return "none"

    __repr__ = __str__


class Array(np.ndarray):
    def __sub__(self, other):
        return np.zeros(16)

    def tobytes(self, *_):
        return bytes(128)


class Lies(torch.Tensor):
    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        return np.zeros(16).view(Array)


class Number(float):
    def __le__(self, other):
        return True

    def __float__(self):
        return 0.0


"""


@pytest.mark.parametrize(
    ("lie", "state", "failed"),
    [
        ("NOTE = Text('wrong')" + RIGHT, FAILED, {"test_note"}),
        ("SEEN_MIB = Number(1e9)" + RIGHT, NOT_MEASURABLE, {"test_memory"}),
        ("def answer(x):\n    return (2 * x + 1).as_subclass(Lies)\n", FAILED, {"test_answer"}),
    ],
    ids=["text", "number", "tensor"],
)
def test_objects_that_lie_about_themselves(verdict_on, lie, state, failed):
    """Only bytes leave the process: no object of the subject ever meets a check."""
    verdict = verdict_on(LIARS + lie)
    assert (verdict.state, verdict.failed_checks) == (state, failed)


ORPHAN = """
import os
import sys
import time


def leave(work):
    \"\"\"An orphan in a session of its own.\"\"\"
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            work()
        os._exit(0)
    os.wait()


def sleep():
    time.sleep(1000)


def spin():
    while True:
        pass


def shout():
    while True:
        os.write(1, b"x" * 65536)


"""


def test_an_orphan_in_a_session_of_its_own(verdict_on):
    """It holds the pipes, and is gone all the same."""
    assert verdict_on(ORPHAN + "leave(sleep)" + RIGHT).state == PASSED


def test_an_orphan_that_goes_on_printing(verdict_on):
    assert verdict_on(ORPHAN + "leave(shout)" + RIGHT).state == PASSED


def test_the_time_of_an_orphan_counts(verdict_on, lab):
    verdict = verdict_on(ORPHAN + "leave(spin)\ntime.sleep(1000)\n")
    assert verdict.state == TIMEOUT
    assert verdict.outside["wall_seconds"] < lab.bounds.wall_seconds


@pytest.mark.parametrize(
    ("act", "state"),
    [
        ("os.chdir('/')", PASSED),
        ("os.environ.clear()", PASSED),
        ("sys.stdout.close()", PASSED),
        ("sys.stdout = sys.stderr = None", PASSED),
        ("os.close(1), os.close(2)", PASSED),
        ("os.closerange(0, 64)", ERROR),
        ("os.close(3)", ERROR),
        ("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", PASSED),
        ("threading.Thread(target=time.sleep, args=[1000]).start()", PASSED),
        ("atexit.register(time.sleep, 1000)", PASSED),
        ("tempfile.mkdtemp(), tempfile.mkstemp(), open(os.environ['TMPDIR'] + '/left', 'w')", PASSED),
        ("os.mkdir(tempfile.gettempdir() + '/shut', 0)", PASSED),
        ("torch.multiprocessing.get_context('fork').Process(target=time.sleep, args=[1000]).start()", PASSED),
        ("subprocess.Popen(['sleep', '1000'], start_new_session=True)", PASSED),
        ("kept = torch.ones(1000).share_memory_()", PASSED),
        ("os.kill(os.getpid(), signal.SIGKILL)", ERROR),
    ],
)
def test_things_done_to_the_process(verdict_on, act, state):
    """They change this one process only: the next verdict, of the next act, is none the wiser."""
    imports = "import atexit, os, signal, subprocess, sys, tempfile, threading, time, torch\n"
    assert verdict_on(imports + act + RIGHT).state == state


# ---------------------------------------------------------------------------------- checks that are at fault themselves

FAULTS = {
    "KeyError": "    evidence['nothing']\n",
    "skip": "    import pytest\n    pytest.skip('not today')\n",
    "xfail": "    import pytest\n    pytest.xfail('known')\n",
    "exit": "    raise SystemExit\n",
    "interrupt": "    raise KeyboardInterrupt\n",
    "writes": "    evidence['answer'][0] = 0\n",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_check_at_fault_is_an_error_and_says_so(engine, changed_lab, name):
    faulty = changed_lab(
        "tests/labs/lab90_answer/test_checks.py",
        lambda text: text.replace('    equal("note"', FAULTS[name] + '    equal("note"'),
    )
    verdict = engine.judge(faulty, faulty.solution, SEED)
    assert (verdict.state, verdict.points) == (ERROR, (0, 0))
    assert verdict.detail.startswith("a check of lab90 is at fault, not the file it judges:\n")


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text + "\n\ntest_note = None\n",
        lambda text: text + "\n\n@check(points=1)\ndef test_note(evidence):\n    pass\n",
        lambda text: text.replace("def test_note(evidence):", "def test_note(evidence, nobody):"),
        lambda text: "import nowhere\n" + text,
        lambda text: text.replace("def test_", "def check_"),
        lambda text: text.replace("@check(points=1)", "@check(points=1)\n@pytest.mark.parametrize('i', [1, 2])")
        .replace("import numpy", "import pytest\nimport numpy"),
    ],
    ids=["missing", "doubled", "no such fixture", "not importable", "none", "parametrized"],
)  # fmt: skip
def test_every_check_reports_exactly_once_or_there_is_no_pass(engine, changed_lab, edit):
    faulty = changed_lab("tests/labs/lab90_answer/test_checks.py", edit)
    verdict = engine.judge(faulty, faulty.solution, SEED)
    assert verdict.state == ERROR
    assert "is at fault, not the file it judges" in verdict.detail


def test_a_check_that_ends_the_judge(engine, changed_lab, lab):
    faulty = changed_lab(
        "tests/labs/lab90_answer/test_checks.py",
        lambda text: text.replace("    equal(", "    __import__('os')._exit(0)\n    equal("),
    )
    with pytest.raises(EngineFailed):
        engine.judge(faulty, faulty.solution, SEED)
    assert engine.judge(lab, lab.solution, SEED).state == PASSED


def test_a_conftest_that_lies_about_is_not_read(engine, changed_lab):
    changed = changed_lab(
        "tests/labs/conftest.py", lambda _: "def pytest_collection_modifyitems(items):\n    items.clear()\n"
    )
    assert engine.judge(changed, changed.solution, SEED).state == PASSED


# ------------------------------------------------------------------------------------------------------------- it needs


def test_needs_cuda(engine, lab, changed_lab):
    verdict = engine.judge(lab, lab.solution, SEED, device="cuda:0")
    if verdict.state == PASSED:
        pytest.skip("this machine has CUDA")
    assert (verdict.state, verdict.exit_code, verdict.points) == (NEEDS_CUDA, 3, (0, 0))
    assert "needs a CUDA device" in verdict.detail
    needy = changed_lab("labs/lab90_answer/lab.toml", lambda toml: 'needs = ["cuda"]\n' + toml)
    assert engine.judge(needy, needy.solution, SEED).state == NEEDS_CUDA


def test_needs_packages(changed_lab, monkeypatch):
    needy = changed_lab("labs/lab90_answer/lab.toml", lambda toml: 'needs = ["onnx"]\n' + toml)
    for wanted in ("surely-not-installed", "torch>=99"):
        monkeypatch.setitem(judge.PACKAGES, "onnx", ("torch", wanted))
        state, what_to_do = judge.lacking(needy, "cpu")
        assert state == NEEDS_PACKAGE
        assert f"{wanted}: pip install 'breakfix[onnx]'" in what_to_do


def test_needs_ranks(monkeypatch):
    monkeypatch.setattr(child, "CAN_FORK", False)
    state, what_to_do = judge.lacking(Catalog.read(TINY_ROOT)["lab91"], "cpu")
    assert state == NEEDS_RANKS
    assert "use Linux, WSL or a container" in what_to_do


def test_two_ranks(engine):
    """They meet on a network of their own, if one can be had, and then the bytes between them are counted."""
    lab = Catalog.read(TINY_ROOT)["lab91"]
    right, wrong = engine.judge(lab, lab.solution, SEED), engine.judge(lab, lab.starter, SEED)
    assert right.state == PASSED
    assert "test_sum" in wrong.failed_checks
    if "wire_bytes" in right.outside:
        assert wrong.failed_checks == lab.starter_fails
        sent = right.outside["wire_bytes"] - wrong.outside["wire_bytes"]
        assert 2 * 4 * lab.measurement.NUMBERS <= sent <= 3 * 4 * lab.measurement.NUMBERS


# -------------------------------------------------------------------------------------------------------- other engines


def test_eight_at_once_on_a_cold_engine(other_engine, lab, tmp_path):
    """The same verdicts as one after the other; what somebody has set for tests of their own reaches no check."""
    (tmp_path / "quits.py").write_text("import os\nos._exit(0)\n")
    (tmp_path / "listens.py").write_text("import multiprocessing.connection as c\nc.Listener(None, 'AF_UNIX')" + RIGHT)
    files = [lab.solution, lab.starter, tmp_path / "quits.py", tmp_path / "listens.py"] * 2
    with ThreadPoolExecutor(8) as pool:
        states = [v.state for v in pool.map(lambda file: other_engine.judge(lab, file, SEED), files)]
    assert states == [PASSED, FAILED, ERROR, PASSED] * 2


KILLS_ITS_JUDGE = """
import os
import time

os.kill(os.getppid(), 9)
os.fork()
time.sleep(1000)
"""


def test_it_kills_its_judge(other_engine, lab, tmp_path):
    """No verdict then, which is said; the file is ended although nobody watches it any more; and the engine goes on."""
    (tmp_path / "train.py").write_text(KILLS_ITS_JUDGE)
    with pytest.raises(EngineFailed, match="ended before its verdict"):
        other_engine.judge(lab, tmp_path / "train.py", SEED)
    assert other_engine.judge(lab, lab.solution, SEED).state == PASSED


def test_the_warm_process_is_killed(other_engine, lab):
    other_engine.start(lab)
    for zygote in other_engine.zygotes.values():
        os.kill(zygote.process.pid, signal.SIGKILL)
        zygote.process.wait()
    assert other_engine.judge(lab, lab.solution, SEED).state == PASSED  # by another one


def test_closing_the_engine_ends_what_it_is_judging(other_engine, roomy, tmp_path):
    (tmp_path / "train.py").write_text(ORPHAN + f"leave(sleep)\nopen({str(tmp_path / 'here')!r}, 'w')\nsleep()\n")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(other_engine.judge, roomy, tmp_path / "train.py", SEED)
        while not (tmp_path / "here").exists() and not asked.done():
            time.sleep(0.02)
        other_engine.close()
        with pytest.raises(EngineFailed):
            asked.result()


def test_an_engine_that_cannot_start_says_why(lab, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TINY_ROOT))
    monkeypatch.setattr("breakfix.zygote.ENVIRONMENT", {"PYTHONHOME": str(TINY_ROOT)})
    with (
        Engine() as engine,
        pytest.raises(EngineFailed, match=r"ended before its verdict\n.*Python path configuration"),
    ):
        engine.judge(lab, lab.solution, SEED)
