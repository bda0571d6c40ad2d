"""A place for strangers' code: what this machine can isolate, and entering it.

namespaces   a process tree, files, network and shared memory of its own; no rights; dangerous system calls refused
none         nothing: only for files that one trusts
"""

import os
import signal
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from breakfix.catalog import Lab
from breakfix.sandbox import kernel, network, seccomp

if sys.platform != "win32":
    import resource  # now: inside the sandbox it may be out of sight

NAMESPACES, NONE = "namespaces", "none"
NOBODY = 65534
ROOM = "size=256m"  # of /tmp and of /dev/shm, each
DEVICES = ("null", "zero", "full", "random", "urandom")
FILES = ("/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/hosts", "/etc/localtime")
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin")
PROCESSES = 256


def best_level() -> str:
    """The strongest level that this machine has, tried."""
    if sys.platform != "linux" or not seccomp.available():
        return NONE
    return NAMESPACES if kernel.works_in_a_fork(_can_enter) else NONE


def _can_enter() -> bool:
    with open(os.devnull, "wb") as silence:
        os.dup2(silence.fileno(), 2)
    enter([], keep_network=False, memory_mib=1024)
    return True


def visible(lab: Lab) -> list[Path]:
    """What a subject of `lab` may see, to read: Python, its libraries, this package, and what measures the lab."""
    return [*_python(), Path(__file__).parents[1], lab.path]


def _python() -> Iterable[Path]:
    places = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
    return [Path(place) for place in sorted(places) if Path(place).is_dir()]


def enter(visible: list[Path], keep_network: bool, memory_mib: float) -> None:
    """Go into a sandbox, for good: what returns is the first process of a tree of its own; the caller's waits for it.

    Raises OSError, and then the process must not go on.
    """
    uid, gid = os.getuid(), os.getgid()
    flags = kernel.NEWNS | kernel.NEWUTS | kernel.NEWIPC | kernel.NEWPID
    kernel.unshare(flags | (0 if keep_network else kernel.NEWNET) | (0 if uid == 0 else kernel.NEWUSER))
    if uid != 0:
        kernel.map_self(uid, gid)
    _become_the_first()
    if not keep_network:
        network.loopback_up()
    _see_only(visible)
    _have_no_rights(uid)
    _limits(memory_mib)
    seccomp.enter()


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


def _see_only(visible: list[Path]) -> None:
    """A root of one's own, with what is visible in it, and places to write that vanish with it."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    root = os.environ.get("TMPDIR", "/tmp")  # any folder will do: what is in it is hidden, not lost
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=16m,mode=755")
    for place in (*SYSTEM, *FILES, *map(str, _outermost(visible))):
        _show(root, place)
    _hide_content(root, visible)
    os.makedirs(f"{root}/dev")
    for device in DEVICES:
        _show(root, f"/dev/{device}", device=True)
    for folder in ("/tmp", "/dev/shm"):
        os.makedirs(f"{root}{folder}")
        kernel.mount("tmpfs", f"{root}{folder}", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"{ROOM},mode=1777")
    os.makedirs(f"{root}/proc")
    kernel.mount("proc", f"{root}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.change_root(root)
    os.chdir("/tmp")


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


def _have_no_rights(uid: int) -> None:
    if uid == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # so that its own /proc is its own again
    kernel.drop_capabilities()


def _limits(memory_mib: float) -> None:
    """Behind the bounds that are watched from outside."""
    data = int(2 * memory_mib + 1024) << 20  # importing torch maps some 800 MiB
    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NPROC, PROCESSES), (resource.RLIMIT_DATA, data)):
        resource.setrlimit(what, (most, most))


__all__ = ["NAMESPACES", "NONE", "best_level", "enter", "kernel", "network", "seccomp", "visible"]
