"""The warm process: it imports torch and pytest once and forks a judge per job; and the client that starts and asks it.

It never reads a job, so that no child can find another's code or seed in its memory, and it runs no op, so that no
thread of an op is missing in the children (one multi-threaded op here would hang them). Where fork is not to be
trusted, a fresh process runs the same judge.
"""

import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from breakfix import child
from breakfix.catalog import Lab
from breakfix.subject import Job
from breakfix.verdict import Verdict

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    # torch.cuda.is_available() initialises CUDA, after which a fork cannot use it, unless NVML is asked instead
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


_ASK = {True: b"C", False: b"M"}  # the first byte of a job: checks too, or only the measurement


class EngineFailed(RuntimeError):
    """The process that judges could not be started or has died; the message says what it printed."""


class Engine:
    """The client: judges subjects in processes of their own. Starts the zygote when first asked; a context manager."""

    def __init__(self):
        self._process: subprocess.Popen | None = None
        self._folder: tempfile.TemporaryDirectory | None = None

    def judge(self, lab: Lab, path: Path, seed: int, device: str = "cpu", ask: bool = True) -> Verdict:
        """The verdict on the file at `path`. Without `ask` its evidence alone. Raises OSError if it cannot be read."""
        job = Job.of_file(lab, Path(path), seed, device)
        if not child.CAN_FORK:
            return _judge_fresh(job, ask)
        self.start()
        with socket.socket(socket.AF_UNIX) as conn:
            conn.connect(self._address())
            return _verdict(_exchange(conn, _ASK[ask] + job.to_bytes(), self))

    def start(self) -> None:
        """Start the zygote without waiting until it is warm."""
        if not child.CAN_FORK or (self._process and self._process.poll() is None):
            return
        self.close()
        self._folder = tempfile.TemporaryDirectory(prefix="breakfix-")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._address())
        listener.listen(128)
        with listener:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "breakfix.zygote", str(listener.fileno())],
                stdin=subprocess.PIPE,  # its end tells the zygote that the client has gone
                stdout=subprocess.DEVNULL,
                stderr=open(Path(self._folder.name) / "log", "w"),  # noqa: SIM115
                pass_fds=[listener.fileno()],
                env=os.environ | ENVIRONMENT,
            )

    def cpu_seconds(self) -> float:
        """CPU time that the zygote itself has used: its imports, then its forks."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the zygote and whatever it is running."""
        if self._process:
            self._process.stdin.close()
            self._process.wait()
        if self._folder:
            self._folder.cleanup()
        self._process = self._folder = None

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _address(self) -> str:
        return f"{self._folder.name}/socket"

    def failure(self) -> EngineFailed:
        """What to raise when the zygote hung up."""
        log = Path(self._folder.name, "log").read_text(errors="replace")[-2000:]
        return EngineFailed(f"the judging process ended before its verdict\n{log}".rstrip())


def _exchange(conn: socket.socket, job: bytes, engine: Engine) -> bytes:
    _send(conn, job)
    try:
        return _receive(conn)
    except (ConnectionError, EOFError):
        raise engine.failure() from None


def _verdict(answer: bytes) -> Verdict:
    """Verdicts travel as JSON and the frame's bytes: nothing that a subject had a hand in is unpickled."""
    size = int.from_bytes(answer[:4], "little")
    return Verdict.from_json(json.loads(answer[4 : 4 + size]), answer[4 + size :])


def _answer(verdict: Verdict) -> bytes:
    head = json.dumps(verdict.to_json()).encode()
    return len(head).to_bytes(4, "little") + head + verdict.frame


def _job(data: bytes) -> tuple[Job, bool]:
    return Job.from_bytes(data[1:]), data[:1] == _ASK[True]


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


# ------------------------------------------------------------------------------------------------------------ the zygote


def serve(listener: socket.socket) -> None:
    """Fork one judge per connection until standard input ends."""
    import select

    import pytest  # noqa: F401
    import torch
    import torch._dynamo

    import breakfix.judge  # noqa: F401

    gc.collect(), gc.freeze()  # pytest collects garbage at its end: over torch's heap that is most of a verdict
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # judges are not waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the client, which then closes standard input
    os.setpgid(0, 0)
    assert not torch.cuda.is_initialized()
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            break
        conn, _ = listener.accept()
        if os.fork() == 0:
            _serve_one(conn, listener)
        conn.close()
    _end_judges()


def _serve_one(conn: socket.socket, listener: socket.socket) -> None:
    """The judge. Never returns."""
    from breakfix.judge import judge

    try:
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        child.not_dumpable()
        child.adopt_orphans()
        verdict = judge(*_job(_receive(conn)))
        child.kill_children()
        cost = {"judge_cpu_seconds": sum(os.times()[:4])}  # its own and its children's
        _send(conn, _answer(replace(verdict, outside=verdict.outside | cost)))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _end_judges() -> None:
    """The client has gone: nobody waits for the judges that still run, nor for what they started."""
    child.adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child.kill_children()


def _judge_fresh(job: Job, ask: bool) -> Verdict:
    """The same judge in a process of its own, where there is no zygote."""
    done = subprocess.run(
        [sys.executable, "-m", "breakfix.zygote", "once"],
        input=_ASK[ask] + job.to_bytes(),
        capture_output=True,
        env=os.environ | ENVIRONMENT,
    )
    marker, _, answer = done.stdout.rpartition(_FRESH)
    if done.returncode or (not marker and not answer):
        raise EngineFailed(
            f"the judging process ended before its verdict\n{done.stderr.decode(errors='replace')[-2000:]}"
        )
    return _verdict(answer)


_FRESH = b"\0breakfix verdict\0"


def main(arguments: list[str]) -> None:
    """`once`: a job on standard input, its verdict on standard output. Else: serve on the inherited socket's number."""
    if arguments == ["once"]:
        from breakfix.judge import judge

        verdict = judge(*_job(sys.stdin.buffer.read()))
        sys.stdout.buffer.write(_FRESH + _answer(verdict))
    else:
        serve(socket.socket(fileno=int(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
