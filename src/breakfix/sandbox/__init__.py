"""A place for strangers' code: what this machine can isolate, and entering it.

namespaces   a process tree, files, network and shared memory of its own; no rights; dangerous system calls refused
user         for root where namespaces are refused: a user id of its own, the same refused calls, no network, few files
none         nothing: only for files that one trusts
"""

import os
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from breakfix import data
from breakfix.catalog import Lab
from breakfix.sandbox import kernel, landlock, network, seccomp

if sys.platform != "win32":
    import resource  # now: inside the sandbox it may be out of sight

NAMESPACES, USER, NONE = "namespaces", "user", "none"
NOBODY, FIRST_USER = 65534, 1 << 30
ROOM = "size=256m,nr_inodes=16k"  # of /tmp and of /dev/shm, each
DEVICES = ("null", "zero", "full", "random", "urandom")
STREAMS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}  # links in /dev to what is below /proc/self/fd
FILES = ("/etc/ld.so.cache", "/etc/localtime")
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin")
USERS_FILES = ("/etc/nsswitch.conf", "/etc/hosts")  # that of the machine, at level user
PROCESSES, OPEN_FILES, LOCKED = 256, 1024, 64 << 20
# Of an environment only this goes to strangers' code: the rest may hold tokens, and the names of people and places.
ENVIRONMENT = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip


def best_level() -> str:
    """The strongest level that this machine has, tried."""
    if sys.platform != "linux" or not seccomp.available():
        return NONE
    with tempfile.TemporaryDirectory() as folder:  # made and removed out here: inside, nobody may remove it
        tried = (level for level in (NAMESPACES, USER) if kernel.works_in_a_fork(partial(_can_enter, level, folder)))
        return next(tried, NONE)


def _can_enter(level: str, folder: str) -> bool:
    with open(os.devnull, "wb") as silence:
        os.dup2(silence.fileno(), 2)
    if level == NAMESPACES:
        enter([], keep_network=False, memory_mib=1024)
        return True
    os.environ["TMPDIR"] = folder
    os.chmod(folder, 0o755)
    enter_as_user([], memory_mib=1024)
    return all(os.access(place, os.R_OK | os.X_OK) for place in (*_python(), Path(__file__).parents[1]))


def environment() -> dict[str, str]:
    """What strangers' code may see of this process's environment."""
    return {name: value for name, value in os.environ.items() if name in ENVIRONMENT}


def visible(lab: Lab) -> list[Path]:
    """What a subject of `lab` may see, to read: Python, its libraries, this package, data sets, the lab."""
    return [*_python(), Path(__file__).parents[1], data.ROOT, lab.path]


def _python() -> Iterable[Path]:
    packages = {place for place in sys.path if place.endswith(("site-packages", "dist-packages"))}  # a user's own too
    places = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *packages}
    return [Path(place) for place in sorted(places) if Path(place).is_dir()]


def enter(visible: list[Path], keep_network: bool, memory_mib: float) -> None:
    """Go into a sandbox, for good: what returns is the first process of a tree of its own; the caller's waits for it.

    Raises OSError, and then the process must not go on.
    """
    uid, gid = os.getuid(), os.getgid()
    user = uid or _user_of_its_own()
    _first_to_go()
    flags = kernel.NEWNS | kernel.NEWUTS | kernel.NEWIPC | kernel.NEWPID
    kernel.unshare(flags | (0 if keep_network else kernel.NEWNET) | (0 if uid == 0 else kernel.NEWUSER))
    if uid != 0:
        kernel.map_self(uid, gid)
    socket.sethostname("localhost")  # the machine's own is nobody's business, and this one resolves
    _become_the_first()
    if not keep_network:
        network.loopback_up()
    _see_only(visible, {"/etc/passwd": f"student:x:{user}:{gid}::/tmp:/bin/sh\n", **_ETC})
    os.environ.update(HOME="/tmp", TMPDIR="/tmp", USER="student", LOGNAME="student")
    _have_no_rights(user)
    _limits(memory_mib)
    seccomp.enter(seccomp.INTERNET)


def enter_as_user(visible: list[Path], memory_mib: float) -> None:
    """For root where namespaces are refused: be a user whom nobody else is, with no network and few files, for good.

    What it makes goes into the folder for temporary files, and into /dev/shm, which `sweep` clears. Raises OSError,
    and then the process must not go on.
    """
    user, folder = _user_of_its_own(), Path(os.environ["TMPDIR"])
    if os.getuid() != 0 or user == NOBODY or landlock.abi() < landlock.LEAST_ABI:
        raise OSError("takes root, a range of user ids, and Landlock")
    if (Path(__file__).parents[1] / "content" / "solutions").is_dir():
        raise OSError("the solutions lie among Python's packages, of which Landlock cannot hide a part")
    _first_to_go()
    os.chown(folder, user, NOBODY)
    for above in folder.parents[:-2]:  # below /tmp, to pass through but not to list
        os.chmod(above, above.stat().st_mode | 0o001) if above.stat().st_uid == 0 else None
    devices = [Path("/dev", name) for name in DEVICES]
    shown = [Path(place) for place in (*SYSTEM, *FILES, "/proc", *USERS_FILES)]
    ruleset = landlock.rules([*shown, *devices[2:], *visible], [*devices[:2], folder, Path("/dev/shm")])
    os.environ.update(HOME=str(folder), USER="student", LOGNAME="student")
    os.chdir(folder)
    _have_no_rights(user)
    _limits(memory_mib)
    landlock.enter(ruleset)
    seccomp.enter(seccomp.UNIX)


def sweep() -> None:
    """Remove from /dev/shm what users of `enter_as_user` have left who have no process any more."""
    alive = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            alive.add(process.stat().st_uid)
    for path in Path("/dev/shm").iterdir():
        with suppress(OSError):
            if path.lstat().st_uid >= FIRST_USER and path.lstat().st_uid not in alive:
                path.unlink() if not path.is_dir() or path.is_symlink() else shutil.rmtree(path, ignore_errors=True)


_ETC = {  # of the machine's own nothing is shown: they name its people and its neighbours
    "/etc/group": "student:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def _user_of_its_own() -> int:
    """For root's subjects a number that no neighbour has: the kernel counts processes, pipes and locks by user."""
    wanted = FIRST_USER + os.getpid()
    mapped = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return wanted if any(first <= wanted < first + count for first, _, count in mapped) else NOBODY


def _first_to_go() -> None:
    """When the machine has no memory left, this family goes before all else; and none of it leaves a core file."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _become_the_first() -> None:
    """Only a child is in the new process tree: it goes on, and this process ends as it does."""
    pid = os.fork()
    if pid == 0:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.closerange(3, 4096)  # above all the pipe, which must end when the child does
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)


def _see_only(visible: list[Path], texts: Mapping[str, str]) -> None:
    """A root of one's own, with what is visible and `texts` in it, and places to write that vanish with it."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    root = os.environ.get("TMPDIR", "/tmp")  # any folder will do: what is in it is hidden, not lost
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=16m,nr_inodes=4k,mode=755")
    for folder in ("/tmp", "/dev/shm"):  # before what is visible, as that may lie in /tmp
        os.makedirs(f"{root}{folder}")
        kernel.mount("tmpfs", f"{root}{folder}", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"{ROOM},mode=1777")
    for place in (*SYSTEM, *FILES, *map(str, _outermost(visible))):
        _show(root, place)
    for name, text in texts.items():
        os.makedirs(os.path.dirname(root + name), exist_ok=True)
        Path(root + name).write_text(text)
    _hide_content(root, visible)
    _devices(root)
    os.makedirs(f"{root}/proc")
    kernel.mount("proc", f"{root}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.no_more_changes(root)
    kernel.change_root(root)
    os.chdir("/tmp")


def _devices(root: str) -> None:
    for device in DEVICES:
        _show(root, f"/dev/{device}", device=True)
    for name, number in STREAMS.items():
        os.symlink(f"/proc/self/fd{number}", f"{root}/dev/{name}")


def _outermost(paths: list[Path]) -> list[Path]:
    """Without those that lie in another, and without what the system's folders show already."""
    shown = [Path(p) for p in SYSTEM]
    for path in sorted({p.resolve() for p in paths} | {p.absolute() for p in paths}):
        if not any(path.is_relative_to(other) for other in shown):
            shown.append(path)
    return shown[len(SYSTEM) :]


def _show(root: str, place: str, device: bool = False) -> None:
    """Let `place` be seen under the new root, as the link that it is, or read-only."""
    if os.path.islink(place):
        os.makedirs(os.path.dirname(root + place), exist_ok=True)
        os.symlink(os.readlink(place), root + place)
    elif os.path.isdir(place):
        os.makedirs(root + place, exist_ok=True)
        kernel.mount(place, root + place, None, kernel.MS_BIND | kernel.MS_REC)
        kernel.read_only(root + place)
    elif os.path.exists(place):
        os.makedirs(os.path.dirname(root + place), exist_ok=True)
        Path(root + place).touch()
        kernel.mount(place, root + place, None, kernel.MS_BIND)
        if not device:
            kernel.read_only(root + place)


def _hide_content(root: str, visible: list[Path]) -> None:
    """In a wheel the solutions lie inside the package: only the lab at hand stays."""
    content = Path(__file__).parents[1] / "content"
    if not content.is_dir():
        return
    kernel.mount("tmpfs", f"{root}{content}", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    for path in visible:
        if path.is_relative_to(content):
            _show(root, str(path))


def _have_no_rights(user: int) -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(user, user, user)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # so that its own /proc is its own again
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # which becoming another user has cleared
    kernel.drop_capabilities()


def _limits(memory_mib: float) -> None:
    """Behind the bounds that are watched from outside. Hard ones, that nobody here can raise."""
    data = int(2 * memory_mib + 1024) << 20  # importing torch maps some 800 MiB
    most = {"NPROC": PROCESSES, "NOFILE": OPEN_FILES, "DATA": data, "MEMLOCK": LOCKED, "MSGQUEUE": 0, "RTPRIO": 0}
    for name, value in most.items():
        what = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


__all__ = [
    "NAMESPACES", "NONE", "USER", "best_level", "enter", "enter_as_user", "environment", "kernel", "network", "seccomp",
    "sweep", "visible",
]  # fmt: skip
