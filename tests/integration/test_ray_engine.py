"""Grading on a Ray cluster: the grades of one machine; a lost worker is made up for, a crash never repeated."""

import os
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs breakfix[grade]")

import ray

from breakfix.catalog import ROOTS_VARIABLE, Catalog
from breakfix.grading import ray_engine
from breakfix.grading.assignment import Assignment
from breakfix.grading.cohort import Cohort
from breakfix.grading.gradebook import Gradebook
from breakfix.grading.ray_engine import RayEngine
from breakfix.grading.submissions import Handin
from breakfix.sandbox import NONE
from breakfix.subject import Job
from breakfix.zygote import Engine, EngineFailed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tests look at /proc")
ROOT = Path(__file__).parents[1] / "fixtures" / "learner_root"
LAB = Catalog.read(ROOT)["lab91"]
RIGHT, BROKEN = LAB.solution.read_text("utf-8"), LAB.starter.read_text("utf-8")
ENDS_ITS_WORKER = """
import os, signal
from pathlib import Path

def parents():
    pid = os.getpid()
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def end_worker():
    worker = next(p for p in parents() if b"ray::" in Path(f"/proc/{p}/cmdline").read_bytes())
    os.kill(worker, signal.SIGKILL)
"""


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory):
    """One small cluster for all, whose workers know the tiny labs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ROOTS_VARIABLE, str(ROOT))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with RayEngine(num_cpus=2, object_store_memory=80 << 20) as engine:
            yield engine


def job(source: str) -> Job:
    return Job(LAB.path, source.encode(), f"/submission/{LAB.editable}", 7)


def grades(engine, folder: Path, sources: dict[str, str]) -> dict[str, tuple]:
    folder.mkdir()
    assignment = Assignment("x", {"lab91": 10}, "k")
    with Gradebook(folder / "book.sqlite") as book:
        cohort = Cohort(assignment, Catalog.read(ROOT), engine, book, isolation=NONE)
        assert all(test.holds for test in cohort.self_test())
        handins = [Handin(student, "lab91", source.encode()) for student, source in sources.items()]
        return {g.student: (g.state, g.points, g.key) for g in cohort.grade(handins, workers=2)}


def test_grades_are_those_of_one_machine(cluster, tmp_path):
    sources = {
        "ada": RIGHT, "bob": BROKEN, "cy": "x = (", "dora": "import os; os._exit(0)",
        "emmy": "import os; os.kill(os.getpid(), 11)", "fay": RIGHT + "\n# fay\n",
    }  # fmt: skip
    with Engine() as local:
        here = grades(local, tmp_path / "here", sources)
    assert grades(cluster, tmp_path / "there", sources) == here
    assert {student: state for student, (state, _, _) in here.items()} == {
        "ada": "passed", "bob": "failed", "cy": "error", "dora": "error", "emmy": "error", "fay": "passed",
    }  # fmt: skip


def test_a_crash_or_a_timeout_is_never_repeated(cluster, tmp_path):
    note = tmp_path / "note"
    for end in ("os._exit(3)", "os.kill(os.getpid(), 9)", "while True: pass"):
        note.unlink(missing_ok=True)
        verdict = cluster.judge_job(job(f"import os\nopen({str(note)!r}, 'a').write('once ')\n{end}\n"))
        assert verdict.state in ("error", "timeout", "out of memory"), end
        assert note.read_text() == "once ", end


def test_a_job_whose_worker_is_lost_is_done_again(cluster, tmp_path):
    note = tmp_path / "note"
    once = f"{ENDS_ITS_WORKER}\nif not (note := Path({str(note)!r})).exists():\n    note.touch()\n    end_worker()\n"
    assert cluster.judge_job(job(once + RIGHT)).passed
    assert note.exists()


def test_a_job_that_ends_every_worker_is_given_up_and_leaves_nothing(cluster, monkeypatch):
    monkeypatch.setattr(ray_engine, "LOST_WORKERS", 0)
    given_up = ray.remote(num_cpus=1, max_retries=0, retry_exceptions=False)(ray_engine.judge)
    monkeypatch.setattr(cluster, "_judge", given_up)
    with pytest.raises(EngineFailed, match="1 workers were lost"):
        cluster.judge_job(job(ENDS_ITS_WORKER + "end_worker()\n"))
    assert cluster.judge_job(job(RIGHT)).passed  # and the next one is judged
    deadline = time.monotonic() + 30
    while (orphans := _zygotes_without_a_worker()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not orphans


def _zygotes_without_a_worker() -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes()
            parent = (
                int((process / "stat").read_text().rpartition(")")[2].split()[1]) if process.name.isdecimal() else 0
            )
        except OSError:
            continue
        if b"breakfix" in command and b"zygote" in command and parent == 1:
            found.append(int(process.name))
    return found


def test_a_worker_with_other_labs_refuses(cluster, monkeypatch):
    monkeypatch.setattr(ray_engine, "lab_digest", lambda lab: "another")
    with pytest.raises(EngineFailed, match="install the same"):
        cluster.judge_job(job(RIGHT))


def test_nothing_is_reported_to_anybody(cluster):
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert cluster.workers == 2
