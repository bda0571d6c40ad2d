"""The warm process: it imports torch and pytest once and forks a judge per job; and the client that starts and asks it.

It never reads a job, so that no child can find another's code or seed in its memory, and it runs no op, so that no
thread of an op is missing in the children (one multi-threaded op here would hang them). Where fork is not to be
trusted, a fresh process runs the same judge.
"""

import gc
import importlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from breakfix import child, sandbox
from breakfix.catalog import Lab
from breakfix.subject import Job
from breakfix.verdict import Verdict

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "",  # what somebody set for tests of their own must not reach the checks
    "PYTEST_PLUGINS": "",
    # torch.cuda.is_available() initialises CUDA, after which a fork cannot use it, unless NVML is asked instead
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


# What a lab that needs a package would otherwise import in every verdict: 0.65 CPU s for an export. Not onnxruntime: it
# starts a thread, which a fork would lose.
WARM = {
    "onnx": (
        "onnx",
        "onnx_ir",
        "onnxscript",
        "onnxscript.function_libs.torch_lib.ops",
        "torch._functorch.aot_autograd",
        "torch._functorch.partitioners",
        "torch.onnx._internal.exporter._core",
        "sympy.tensor.tensor",
    ),
    "serve": ("fastapi", "httpx"),
    "quantize": ("torchao.quantization",),
}
CHECKS_SECONDS = 600  # for all checks of a lab: a judge that has not ended then is ended
_ASK = {True: b"C", False: b"M"}  # the first byte of a job: checks too, or only the measurement


class EngineFailed(RuntimeError):
    """The process that judges could not be started or has died; the message says what it printed."""


class Engine:
    """The client: judges subjects in processes of their own, from any thread. Starts a zygote when first asked.

    A context manager: it ends its zygotes, and whatever they are running.
    """

    def __init__(self):
        self._lock = threading.RLock()
        self.zygotes: dict[tuple[bool, tuple[str, ...]], Zygote] = {}  # for strangers or not; what they import

    def judge(self, lab: Lab, path: Path, seed: int, device: str = "cpu", ask: bool = True) -> Verdict:
        """The verdict on the file at `path`; without `ask` its evidence alone.

        Raises OSError if the file cannot be read, EngineFailed if there is no verdict.
        """
        return self.judge_job(Job.of_file(lab, Path(path), seed, device), ask)

    def judge_job(self, job: Job, ask: bool = True) -> Verdict:
        """The verdict on a job whose source may be in no file. Raises EngineFailed."""
        data = _ASK[ask] + job.to_bytes()
        if not child.CAN_FORK:
            return _verdict(_judge_fresh(data))
        return _verdict(self._zygote(job.lab.needs, job.isolation != sandbox.NONE).exchange(data))

    def start(self, *labs: Lab) -> None:
        """Start the zygotes of `labs`, else the one of most labs, without waiting until they are warm."""
        if child.CAN_FORK:
            for needs in [lab.needs for lab in labs] or [()]:
                self._zygote(needs).start()

    def cpu_seconds(self) -> float:
        """CPU time that the zygotes themselves have used: their imports, then their forks."""
        return sum(zygote.cpu_seconds() for zygote in self.zygotes.values())

    def close(self) -> None:
        """End the zygotes and whatever they are running."""
        with self._lock:
            for zygote in self.zygotes.values():
                zygote.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _zygote(self, needs: Collection[str], for_strangers: bool = False) -> "Zygote":
        imports = tuple(module for need in needs for module in WARM.get(need, ()))
        with self._lock:
            return self.zygotes.setdefault((for_strangers, imports), Zygote(imports, for_strangers))


class Zygote:
    """The client of one warm process, which has imported `imports` beside torch and pytest.

    One `for_strangers` starts without this process's environment: what it never had, no child finds in its memory.
    """

    def __init__(self, imports: tuple[str, ...] = (), for_strangers: bool = False):
        self.imports, self.for_strangers = imports, for_strangers
        self.process: subprocess.Popen | None = None
        self.folder: tempfile.TemporaryDirectory | None = None
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start it, if it is not there, without waiting until it is warm."""
        with self._lock:
            if self.process and self.process.poll() is None:
                return
            self.close()
            self.folder = tempfile.TemporaryDirectory(prefix="breakfix-", dir=_near(), ignore_cleanup_errors=True)
            with socket.socket(socket.AF_UNIX) as listener, open(self._log(), "w") as log:
                listener.bind(self._address())
                listener.listen(128)
                self.process = self._popen(listener.fileno(), log)

    def exchange(self, data: bytes) -> bytes:
        """The answer of a judge to `data`. Raises EngineFailed."""
        with self._lock:
            self.start()
            address, log = self._address(), self._log()
        try:
            with socket.socket(socket.AF_UNIX) as conn:
                conn.connect(address)
                _send(conn, data)
                return _receive(conn)
        except (OSError, EOFError):
            raise EngineFailed(f"the judging process ended before its verdict\n{_tail(log)}".rstrip()) from None

    def cpu_seconds(self) -> float:
        """CPU time that the process itself has used."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it and whatever it is running."""
        with self._lock:
            if self.process:
                self.process.stdin.close()
                self.process.wait()
            if self.folder:
                self.folder.cleanup()
            self.process = self.folder = None

    def _popen(self, listener: int, log: IO[str]) -> subprocess.Popen:
        environment = sandbox.environment() if self.for_strangers else dict(os.environ)
        environment.pop("TORCHINDUCTOR_CACHE_DIR", None)  # what was compiled elsewhere has no say in a verdict
        return subprocess.Popen(
            # -P: the working folder may be a student's own, and its torch.py is not to be imported here
            [sys.executable, "-P", "-m", "breakfix.zygote", str(listener), *self.imports],
            stdin=subprocess.PIPE,  # its end tells the zygote that the client has gone
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=[listener],
            env=environment | ENVIRONMENT | {"TMPDIR": self.folder.name},
        )

    def _address(self) -> str:
        return f"{self.folder.name}/socket"

    def _log(self) -> str:
        return f"{self.folder.name}/log"


def _near() -> str | None:
    """The path of a socket holds 107 bytes, and those of a subject (its loader workers have some) lie 70 deeper."""
    return "/tmp" if len(tempfile.gettempdir()) > 36 and os.access("/tmp", os.W_OK) else None


def _tail(log: str) -> str:
    try:
        return Path(log).read_text(errors="replace")[-2000:]
    except OSError:  # the engine was closed meanwhile
        return ""


def _verdict(answer: bytes) -> Verdict:
    """Verdicts travel as JSON and the frame's bytes: nothing that a subject had a hand in is unpickled."""
    size = int.from_bytes(answer[:4], "little")
    return Verdict.from_json(json.loads(answer[4 : 4 + size]), answer[4 + size :])


def _answer(data: bytes) -> bytes:
    """The judge's work: the answer to a job, when nothing that the job has started is left."""
    from breakfix.judge import judge

    job = Job.from_bytes(data[1:])
    if hasattr(signal, "alarm"):
        signal.alarm(int(2 * job.lab.bounds.wall_seconds) + CHECKS_SECONDS)  # the subject, an idle one, the checks
    child.not_dumpable()
    child.adopt_orphans()
    verdict = judge(job, checks=data[:1] == _ASK[True])
    child.kill_children()
    cost = {"judge_cpu_seconds": sum(os.times()[:4])}  # its own and its children's
    verdict = replace(verdict, outside=verdict.outside | cost)
    head = json.dumps(verdict.to_json()).encode()
    return len(head).to_bytes(4, "little") + head + verdict.frame


def _send(conn: socket.socket, data: bytes) -> None:
    conn.sendall(struct.pack("<Q", len(data)) + data)


def _receive(conn: socket.socket) -> bytes:
    size = struct.unpack("<Q", _exactly(conn, 8))[0]
    return _exactly(conn, size)


def _exactly(conn: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = conn.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


# ----------------------------------------------------------------------------------------------------------- the zygote


def serve(listener: socket.socket, imports: Collection[str] = ()) -> None:
    """Import, then fork one judge per connection until standard input ends."""
    import select

    import pytest  # noqa: F401
    import torch
    import torch._dynamo

    import breakfix.judge  # noqa: F401

    for module in imports:
        with suppress(ImportError):  # then the lab says what it lacks
            importlib.import_module(module)
    gc.collect(), gc.freeze()  # pytest collects garbage at its end: over torch's heap that is most of a verdict
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the client, which then closes standard input
    os.setpgid(0, 0)
    child.adopt_orphans()  # those of a judge that its subject has killed
    assert not torch.cuda.is_initialized()
    judges: dict[int, int] = {}  # a descriptor that says when it has ended: its pid
    while True:
        ready, _, _ = select.select([listener, sys.stdin, *judges], [], [])
        for descriptor in judges.keys() & set(ready):
            _bury(judges.pop(descriptor), descriptor, judges.values())
        if sys.stdin in ready:
            break
        if listener in ready:
            conn, _ = listener.accept()
            pid = os.fork()
            if pid == 0:
                _serve_one(conn, listener, _folder_of(os.getpid()))
            conn.close()
            judges[os.pidfd_open(pid)] = pid
    child.kill_children()  # the client has gone: nobody waits for the judges that still run


def _bury(judge: int, descriptor: int, others: Collection[int]) -> None:
    """Reap a judge that has ended; what one that did not end by itself has left running or lying is ours to remove."""
    os.waitpid(judge, 0)
    os.close(descriptor)
    child.kill_children(besides=others)
    shutil.rmtree(_folder_of(judge), ignore_errors=True)


def _folder_of(judge: int) -> str:
    return f"{tempfile.gettempdir()}/{judge}"


def _serve_one(conn: socket.socket, listener: socket.socket, folder: str) -> None:
    """The judge. Never returns."""
    try:
        listener.close()
        os.mkdir(folder)
        child.use_for_temporary_files(folder)
        _send(conn, _answer(_receive(conn)))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _judge_fresh(data: bytes) -> bytes:
    """The answer of the same judge in a process of its own, where there is no zygote."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "breakfix.zygote", "once"],
        input=data,
        capture_output=True,
        env=os.environ | ENVIRONMENT,
    )
    _, marker, answer = done.stdout.rpartition(_FRESH)
    if done.returncode or not marker:
        said = done.stderr.decode(errors="replace")[-2000:]
        raise EngineFailed(f"the judging process ended before its verdict\n{said}".rstrip())
    return answer


_FRESH = b"\0breakfix verdict\0"


def main(arguments: list[str]) -> None:
    """`once`: a job on standard input, its verdict on standard output. Else: the inherited socket's number, imports."""
    if arguments == ["once"]:
        sys.stdout.buffer.write(_FRESH + _answer(sys.stdin.buffer.read()))
    else:
        serve(socket.socket(fileno=int(arguments[0])), arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
