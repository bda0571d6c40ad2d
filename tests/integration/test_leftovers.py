"""Whatever becomes of a verdict, of the ranks and workers that a file has started nothing is left.

Everything happens in a process of its own, which is asked for nothing else: this file run as a program. It adopts
orphans, so whatever its engine starts stays among its descendants. It has a folder of its own for temporary files and,
where the kernel lets it, /dev/shm and /tmp of its own. So nobody else on the machine is seen, and nobody is mistaken.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from breakfix import child
from breakfix.catalog import Catalog, Lab
from breakfix.sandbox import kernel
from breakfix.verdict import ERROR, FAILED, OUT_OF_MEMORY, PASSED, TIMEOUT
from breakfix.zygote import Engine

ROOT = Path(__file__).parents[2]
TINY_ROOT = ROOT / "tests" / "fixtures" / "tiny_root"
SEED = 7
PATIENCE = 10  # seconds: a judge ends just after its answer
SHARED, TEMPORARY = Path("/dev/shm"), Path("/tmp")

pytestmark = pytest.mark.skipif(not child.CAN_FORK, reason="ranks and loader workers are forked, on Linux only")

# Loader workers that persist, shared memory, sockets that listen, folders and a process: what a file can leave.
LEAVES = """
import mmap
import multiprocessing.shared_memory
import os
import socket
import subprocess
import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

kept = []


def leave():
    kept.append(torch.ones(1000).share_memory_())
    kept.append(socket.create_server(("127.0.0.1", 0)))
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(os.path.join(tempfile.mkdtemp(), "socket"))
    kept[-1].listen()
    kept.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))


def leave_workers():
    leave()
    loader = DataLoader(TensorDataset(torch.ones(64)), batch_size=8, num_workers=2, persistent_workers=True)
    kept.append(iter(loader))
    next(kept[-1])


def leave_named_memory():
    kept.append(multiprocessing.shared_memory.SharedMemory(f"breakfix-test-{os.getpid()}", create=True, size=4096))


def eat():
    while True:
        kept.append(mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000))  # populated
"""

RANKS = {  # how a file for lab91 ends: the state that comes of it
    "    dist.all_reduce(x)\n    return x\n": PASSED,
    "    return x\n": FAILED,
    "    if dist.get_rank() == 1:\n        raise ValueError\n    dist.all_reduce(x)\n    return x\n": ERROR,
    "    if dist.get_rank() == 1:\n        os._exit(3)\n    dist.all_reduce(x)\n    return x\n": ERROR,
    "    while True:\n        pass\n": TIMEOUT,
    "    eat() if dist.get_rank() == 1 else dist.all_reduce(x)\n": OUT_OF_MEMORY,
}
WORKERS = {  # the same for lab90
    "    return 2 * x + 1\n": PASSED,
    "    return x\n": FAILED,
    "    raise ValueError\n": ERROR,
    "    while True:\n        pass\n": TIMEOUT,
    "    eat()\n": OUT_OF_MEMORY,
}
REAL = {("lab05", "solution"): PASSED, ("lab05", "starter"): FAILED, ("lab20", "solution"): PASSED}
REAL[("lab20", "starter")] = FAILED


@dataclass
class Watch:
    """What there is of this process's descendants, and of the files that they make."""

    private: list[Path]  # folders that nobody else sees
    own: set[str] = field(default_factory=set)  # what the engine may keep

    def left(self) -> set[str]:
        """Processes but the warm ones, sockets that these hold, files."""
        return (self.processes() | self.sockets() | self.files()) - self.own

    def settle(self) -> None:
        """All that there is now may stay."""
        self.own |= self.left()

    def soon(self) -> list[str]:
        """What is still left when everybody has had the time to go."""
        deadline = time.monotonic() + PATIENCE
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return sorted(left)

    def processes(self) -> set[str]:
        return {f"process {pid}: {_read(f'/proc/{pid}/cmdline')[:60]}" for pid in descendants()}

    def sockets(self) -> set[str]:
        """Listening or not, of whichever family or network: a socket is there as long as somebody has it open."""
        found = set()
        for pid in [os.getpid(), *descendants()]:
            for number in _listed(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{number}")
                    found |= {f"{pid} has {target}"} if target.startswith("socket:") else set()
        return found

    def files(self) -> set[str]:
        folders = {Path(tempfile.gettempdir()), *self.private}
        found = {path for folder in folders for path in folder.rglob("*")}
        if SHARED not in self.private:
            found |= {path for path in SHARED.iterdir() if not somebody_elses(path)}
        return {f"file {path}" for path in found}


def descendants() -> set[int]:
    """All that run and have this process among their ancestors; orphans come back to it."""
    processes = child._processes()
    family = {os.getpid()}
    while more := {p.pid for p in processes.values() if p.parent in family} - family:
        family |= more
    return {pid for pid in family - {os.getpid()} if processes[pid].running}


def somebody_elses(path: Path) -> bool:
    """Whether a piece of shared memory is another user's, or a process outside this family has it open or mapped."""
    with suppress(OSError):
        if path.stat().st_uid != os.getuid():
            return True
    family = {os.getpid(), *descendants()}
    others = [pid for pid in _listed("/proc") if pid.isdigit() and int(pid) not in family]
    return any(str(path) in _read(f"/proc/{pid}/maps") or _has_open(pid, path) for pid in others)


def _has_open(pid: str, path: Path) -> bool:
    for number in _listed(f"/proc/{pid}/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{number}") == str(path):
                return True
    return False


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # ended, or not ours to see
        return []


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


# --------------------------------------------------------------------------------------------- the process of its own


def main(arguments: list[str]) -> None:
    """Judge, say after each verdict what is left, and after the engine has gone; or plant something and look."""
    os.chdir(ROOT)  # where one is may be about to be hidden
    child.adopt_orphans()
    private = places_of_its_own()
    with tempfile.TemporaryDirectory(prefix="bf-", dir="/tmp") as folder:
        child.use_for_temporary_files(folder)
        found = planted(private) if arguments == ["--plant"] else judged(private, arguments == ["--named-memory"])
        print(json.dumps({"private": list(map(str, private)), "found": found}))
        child.kill_children()
        for path in SHARED.glob("breakfix-test-*"):  # what the next run would find; nobody else names anything so
            path.unlink()


def places_of_its_own() -> list[Path]:
    """/dev/shm and /tmp as nobody else sees them, or none; /tmp only if nothing that is needed lies there."""
    uid, gid = os.getuid(), os.getgid()
    needed = [sys.executable, sys.prefix, sys.base_prefix, str(ROOT), str(Path(child.__file__))]
    places = [SHARED] if any(path.startswith(f"{TEMPORARY}/") for path in needed) else [SHARED, TEMPORARY]
    try:
        kernel.unshare(kernel.NEWNS | (0 if uid == 0 else kernel.NEWUSER))
        kernel.map_self(uid, gid) if uid else None
        kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
        for place in places:
            kernel.mount("tmpfs", str(place), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=1777")
    except OSError:  # a container that forbids it: then by whose it is
        return []
    return places


def judged(private: list[Path], named_memory: bool) -> list[dict]:
    found = []
    with tempfile.TemporaryDirectory() as folder, Engine() as engine:
        watch = Watch(private)
        cases = named_memory_case(Path(folder)) if named_memory else [*tiny_cases(Path(folder)), *real_cases()]
        engine.judge(cases[0][1], cases[0][1].solution, SEED)  # so that the warm process is there
        watch.settle()
        for name, lab, path, wanted in cases:
            verdict = engine.judge(lab, path, SEED)
            told = verdict.detail[-300:] if verdict.state != wanted else ""
            found.append({"case": name, "wanted": wanted, "state": verdict.state, "told": told, "left": watch.soon()})
    watch = Watch(private, own={f"file {tempfile.gettempdir()}"})
    return [*found, {"case": "the engine has gone", "wanted": "", "state": "", "told": "", "left": watch.soon()}]


def tiny_cases(folder: Path) -> list[tuple[str, Lab, Path, str]]:
    """Files for the tiny labs of ranks and of one process, in copies with less memory."""
    shutil.copytree(TINY_ROOT, folder / "root")
    for toml in (folder / "root").glob("labs/*/lab.toml"):
        text = toml.read_text().replace("memory_mib = 2048", "memory_mib = 800")
        toml.write_text(text.replace("cpu_seconds = 0.4", "cpu_seconds = 4"))
    measure = folder / "root" / "labs" / "lab91_two_ranks" / "measure.py"  # the bounds end it before its own patience
    measure.write_text(measure.read_text().replace("timeout_s=20", "timeout_s=120"))
    catalog, cases = Catalog.read(folder / "root"), []
    for lab, call, leave, ends in ("lab91", "share", "leave", RANKS), ("lab90", "answer", "leave_workers", WORKERS):
        for i, (end, wanted) in enumerate(ends.items()):
            path = folder / f"{lab}_{i}.py"
            path.write_text(f"{LEAVES}\n\ndef {call}(x):\n    {leave}()\n{end}")
            cases.append((f"{lab} {wanted} {i}", catalog[lab], path, wanted))
    return cases


def named_memory_case(folder: Path) -> list[tuple[str, Lab, Path, str]]:
    path = folder / "named.py"
    path.write_text(f"{LEAVES}\n\ndef answer(x):\n    leave_named_memory()\n    return 2 * x + 1\n")
    return [("named memory", Catalog.read(TINY_ROOT)["lab90"], path, PASSED)]


def real_cases() -> list[tuple[str, Lab, Path, str]]:
    catalog = Catalog.read(ROOT)
    return [
        (f"{lab} {role}", catalog[lab], getattr(catalog[lab], role), wanted) for (lab, role), wanted in REAL.items()
    ]


def planted(private: list[Path]) -> list[dict]:
    """One of each kind of leftover, by an orphan of ours where it takes a process."""
    watch = Watch(private)
    watch.settle()
    source = LEAVES + "\nleave_workers()\nleave_named_memory()\nimport time\ntime.sleep(1000)\n"
    starter = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {source!r}], start_new_session=True)"
    subprocess.run([sys.executable, "-c", starter], check=True, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(descendants()) < 5 and time.monotonic() < deadline:  # it, sleep, two workers, a resource tracker
        time.sleep(0.1)
    left = sorted(watch.left())
    child.kill_children()
    return [{"case": "planted", "wanted": "", "state": "", "told": "", "left": left}]


# ------------------------------------------------------------------------------------------------------------ the tests


def watched(*arguments: str) -> dict:
    command = [sys.executable, __file__, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def seen() -> dict[str, dict]:
    return {found["case"]: found for found in watched()["found"]}


CASES = [
    *(f"lab91 {wanted} {i}" for i, wanted in enumerate(RANKS.values())),
    *(f"lab90 {wanted} {i}" for i, wanted in enumerate(WORKERS.values())),
    *(f"{lab} {role}" for lab, role in REAL),
    "the engine has gone",
]


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left(seen, case):
    """No process, no socket, no file and no shared memory, whatever the verdict was."""
    found = seen[case]
    assert (found["state"], found["left"]) == (found["wanted"], []), found["told"]


@pytest.mark.xfail(strict=True, reason="the process that would remove it is killed with all others of its family")
def test_named_shared_memory_is_not_left():
    """multiprocessing.SharedMemory has a name in /dev/shm, which Python's own resource tracker removes at the end."""
    found = watched("--named-memory")["found"][0]
    assert (found["state"], found["left"]) == (PASSED, []), found["told"]


def test_what_is_left_would_be_seen():
    """The watch sees a process, a listening socket of either family, a file and a piece of shared memory."""
    answer = watched("--plant")
    [found] = answer["found"]
    kinds = [
        sum(name.startswith("process") and "sleep" in name for name in found["left"]),
        sum("has socket" in name for name in found["left"]) // 2,
        sum(name.startswith("file") and name.endswith("/socket") for name in found["left"]),
        sum(name.startswith(f"file {SHARED}") for name in found["left"]),
    ]
    assert min(kinds) >= 1, found["left"]


if __name__ == "__main__":
    main(sys.argv[1:])
