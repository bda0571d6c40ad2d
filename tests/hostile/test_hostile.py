"""Every hostile submission is judged as a class is: several at a time, an honest neighbour beside them.

An attack that works gives the right answer, so a passed verdict is a successful attack. None may pass, none may leave
anything behind, none may change what a neighbour gets. Those in which a limit of the design shows say `# open:`, and
those that end otherwise at the level user (test_user_level.py) `# user:`, with the state and why.
"""

import os
import pwd
import resource
import secrets
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from breakfix import child, judge, sandbox
from breakfix.catalog import Catalog
from breakfix.grading.assignment import Assignment
from breakfix.subject import Job
from breakfix.verdict import EXIT_CODES, PASSED, Verdict
from breakfix.zygote import Engine, Zygote

pytestmark = pytest.mark.skipif(
    sandbox.best_level() == sandbox.NONE, reason="this machine cannot make namespaces, so no stranger's file is run"
)

HERE = Path(__file__).parent
LAB = Catalog.read(HERE)["lab97"]
HONEST = sorted((HERE / "honest").glob("*.py"))
LEVEL = os.environ.get("HOSTILE_LEVEL", sandbox.NAMESPACES)
SUBMISSIONS = sorted((HERE / "submissions").glob("*.py"))
PORT, ABSTRACT, MARK = 47831, "\0hostile-listener", "hostile_"
AT_A_TIME, NEIGHBOURS, SLOW = 3, 5, ("loop_", "processes_", "flood_", "hog_")


def head(path: Path, word: str) -> str:
    """What the line `# word:` at the top of a submission says."""
    lines = path.read_text("utf-8").splitlines()[:4]
    return next((line.removeprefix(f"# {word}:").strip() for line in lines if line.startswith(f"# {word}:")), "")


def job(path: Path) -> Job:
    seed = secrets.randbelow(1 << 31)
    return Job(LAB.path, path.read_bytes(), "/submission/report.py", seed, isolation=LEVEL)


@dataclass
class Judged:
    """The verdicts to come, the neighbours' verdicts, and what reached the outside world."""

    engine: Engine
    verdicts: dict[str, Future[Verdict]]
    neighbours: list[Verdict] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)

    def wait(self) -> None:
        for future in self.verdicts.values():
            future.exception()


@pytest.fixture(scope="module")
def judged(request, tmp_path_factory):
    """All chosen submissions on their way, in a folder of hostile files, beside secrets and listening servers."""
    here = [i for i in request.session.items if i.path == Path(__file__) and hasattr(i, "callspec")]
    chosen = {item.callspec.params["path"] for item in here}
    with ExitStack() as stack:
        reached: list[str] = []
        stack.enter_context(listening(reached))
        folder = tmp_path_factory.mktemp("grading")
        plant(folder)
        before = os.getcwd()
        os.chdir(folder)
        stack.callback(os.chdir, before)
        os.environ["HOSTILE_TOKEN"] = f"canary-of-the-grader-{secrets.token_hex(8)}"
        stack.callback(os.environ.pop, "HOSTILE_TOKEN")
        limits = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (limits[1], limits[1]))  # so that a crash could leave a core file
        stack.callback(resource.setrlimit, resource.RLIMIT_CORE, limits)
        engine = stack.enter_context(Engine())
        pool = stack.enter_context(ThreadPoolExecutor(AT_A_TIME))
        slow_first = sorted(chosen, key=lambda path: (not path.name.startswith(SLOW), path.name))
        verdicts = {path.stem: pool.submit(engine.judge_job, job(path)) for path in slow_first}
        found = Judged(engine, verdicts, reached=reached)
        neighbour = threading.Thread(target=be_a_neighbour, args=(found,))
        neighbour.start()
        stack.callback(neighbour.join)
        yield found


def be_a_neighbour(judged: Judged) -> None:
    """An honest file, judged now and then while the hostile ones are."""
    while len(judged.neighbours) < NEIGHBOURS and not all(f.done() for f in judged.verdicts.values()):
        judged.neighbours.append(judged.engine.judge_job(job(LAB.solution)))
        time.sleep(3)


def plant(folder: Path) -> None:
    """What a grader's folder holds: secrets, and modules with the names of what the engine imports."""
    for name in ("torch", "numpy", "pytest", "json", "breakfix", "sitecustomize", "conftest"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'hostile_import')!r}, 'w')\n")
    for name in ("assignment.toml", "gradebook.sqlite", "roster.csv", "submissions/ada/hostile_neighbour.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("key = 'secret'\n")


class listening:
    """Servers on this machine that nobody must reach."""

    def __init__(self, reached: list[str]):
        self.reached = reached
        self.tcp, self.udp, self.unix = (
            socket.socket(*kind)
            for kind in (
                (socket.AF_INET, socket.SOCK_STREAM),
                (socket.AF_INET, socket.SOCK_DGRAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
            )
        )

    def __enter__(self) -> None:
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for server, address in (
            (self.tcp, ("127.0.0.1", PORT)),
            (self.udp, ("127.0.0.1", PORT)),
            (self.unix, ABSTRACT),
        ):
            try:
                server.bind(address)
            except OSError as error:
                pytest.skip(f"{address} is in use: {error}")
        self.tcp.listen(), self.unix.listen()
        self.thread = threading.Thread(target=self.answer)
        self.stop = os.pipe()
        self.thread.start()

    def answer(self) -> None:
        import select

        servers = {self.tcp: "TCP", self.udp: "UDP", self.unix: "an abstract socket"}
        while True:
            ready, _, _ = select.select([*servers, self.stop[0]], [], [])
            if self.stop[0] in ready:
                return
            for server in ready:
                self.reached.append(servers[server])
                if server is self.udp:
                    server.sendto(b"answered", server.recvfrom(64)[1])
                else:
                    server.accept()[0].close()

    def __exit__(self, *_) -> None:
        os.write(self.stop[1], b"x")
        self.thread.join()
        for server in (self.tcp, self.udp, self.unix):
            server.close()


# -------------------------------------------------------------------------------------------------- one file at a time


def ids(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", SUBMISSIONS, ids=ids)
def test_submission(path, judged):
    """Not passed, in the state that the file declares; else in any that comes of a file."""
    verdict = judged.verdicts[path.stem].result()
    said = f"{head(path, 'attack')}: {verdict.state} {verdict.detail} {verdict.log[-1000:]}"
    assert head(path, "attack")
    assert verdict.state in (declared(path) or set(EXIT_CODES) - {PASSED}), said
    assert verdict.state != PASSED or head(path, "open") or LEVEL == sandbox.USER, said
    assert "\x1b" not in verdict.log + verdict.detail  # which would command the terminal of whoever reads it
    assert verdict.outside["wall_seconds"] < LAB.bounds.wall_seconds + 30


def declared(path: Path) -> set[str]:
    """The states that the file says it ends in, at this level."""
    if LEVEL == sandbox.USER and head(path, "user"):
        return {head(path, "user").partition(":")[0]}
    return {state.strip() for state in head(path, "state").split(",")} - {""}


@pytest.mark.parametrize("path", HONEST, ids=ids)
def test_honest(path, judged):
    """What honest code needs of a machine is there."""
    verdict = judged.verdicts[path.stem].result()
    assert verdict.passed, f"{verdict.state} {verdict.detail} {[c.message for c in verdict.checks]} {verdict.log}"


# ------------------------------------------------------------------------------------------------------ all together


def test_a_neighbour_is_not_disturbed(judged):
    judged.wait()
    assert judged.neighbours
    assert [v.state for v in judged.neighbours] == [PASSED] * len(judged.neighbours)


def test_the_engine_survives_and_the_solution_passes_each_time(judged):
    judged.wait()
    engines = {zygote.process.pid for zygote in judged.engine.zygotes.values()}
    assert len(engines) == 1  # started once, not again after a death
    assert [judged.engine.judge_job(job(LAB.solution)).state for _ in range(5)] == [PASSED] * 5
    assert {zygote.process.pid for zygote in judged.engine.zygotes.values()} == engines
    assert judged.engine.judge_job(job(LAB.starter)).failed_checks == LAB.starter_fails


def test_nothing_reached_the_outside(judged):
    judged.wait()
    assert judged.reached == []


def test_nothing_is_left_behind(judged):
    """Neither processes nor files nor memory, and the grader's own files are as they were."""
    judged.wait()
    zygote = next(iter(judged.engine.zygotes.values()))
    deadline = time.monotonic() + 10  # a judge has answered before it has ended, and its folder goes after it
    while (left := traces(zygote)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == set()
    assert files() == []
    assert sorted(p.name for p in Path.cwd().iterdir() if p.suffix != ".py") == [
        "assignment.toml", "gradebook.sqlite", "roster.csv", "submissions",
    ]  # fmt: skip
    assert str(1 << 30) not in Path("/proc/sysvipc/shm").read_text().split()


def traces(zygote: Zygote) -> set[str]:
    """Folders of judges, and processes that have the engine's folder in their environment, where one may look."""
    found = {name for name in os.listdir(zygote.folder.name) if name.isdigit()}
    for pid in set(filter(str.isdigit, os.listdir("/proc"))) - {str(zygote.process.pid)}:
        with suppress(OSError):
            if zygote.folder.name.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.add(f"process {pid}")
    return found


def files() -> list[Path]:
    places = {Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path.home(), Path("/"), Path.cwd(), Path("/dev/mqueue")}
    with suppress(KeyError):
        places.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    readable = [place for place in places if place.is_dir() and os.access(place, os.R_OK)]
    return [path for place in readable for path in place.glob(f"{MARK}*")]


# ---------------------------------------------------------------------------------------------------------- and beside


def test_there_are_enough_of_them():
    assert len(SUBMISSIONS) >= 40
    assert len([path for path in SUBMISSIONS if head(path, "open")]) <= 2


def test_the_lab_itself_obeys():
    """Its starter fails what it declares; the key decides the inputs, and nobody has it."""
    assert LAB.starter_fails == {"test_totals", "test_memory"}
    plans = [Assignment("any", {"lab97": 10}, key=key) for key in ("a", "b")]
    assert len({plan.seed(LAB, b"x") for plan in plans}) == 2


def test_a_strangers_evidence_cannot_make_a_check_take_everything(monkeypatch):
    """Memory and time of the checks end with an exception in the check: an error of this one verdict."""
    with judge._bounded(), pytest.raises(MemoryError):
        np.ones(judge.CHECKS_BYTES, dtype=np.uint8)
    monkeypatch.setattr(judge, "CHECKS_CPU_SECONDS", 0.05)
    with judge._bounded(), pytest.raises(TimeoutError):
        spin()


def spin() -> None:
    while True:
        pass


def test_memory_of_one_that_does_not_let_itself_be_seen_counts_in_full(monkeypatch):
    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refused)
    process = child._Process(1, True, 0, 1, 0.0, 123)
    assert child._proportional(process) == 123
