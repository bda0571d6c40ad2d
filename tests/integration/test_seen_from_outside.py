"""What is seen of a process from outside is what it used: memory, CPU time, bytes on its network."""

import ctypes
import fcntl  # imported while it can be: somebody else may not be allowed to read the interpreter's files
import os
import socket
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from breakfix import child
from breakfix.sandbox import network

pytestmark = pytest.mark.skipif(not child.CAN_FORK, reason="seen from outside on Linux only")

BOUNDS = child.Bounds(cpu_seconds=20, memory_mib=8192)
MIB = 1 << 20


# Asked from a fresh process: a fork of this one would begin with whatever earlier tests have left in its heap.
PEAKS = """
import sys
from breakfix import child

def hold(mib, times):
    for _ in range(times):
        held = b"1" * (mib << 20)
        del held
    return b""

for mib, times in eval(sys.argv[1]):
    ended = child.run_child(lambda: hold(mib, times), child.Bounds(20, 8192))
    assert (ended.state, ended.exit) == (child.ENDED, 0)
    print(ended.outside["maxrss_mib"])
"""


def peaks(*held: tuple[int, int]) -> list[float]:
    """MiB at the peak of one child for each (MiB that it holds, how often one after the other)."""
    done = subprocess.run([sys.executable, "-c", PEAKS, str(held)], capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


@pytest.mark.parametrize("mib", [16, 128])
def test_memory(mib):
    """A child that holds N MiB has a peak within a few MiB of an idle one's and N."""
    idle, holding = peaks((0, 1), (mib, 1))
    assert abs(holding - idle - mib) < 4


def test_memory_that_was_given_back_does_not_add_up():
    """What is freed leaves the resident size at once, so the peak is what was alive at one time."""
    once, five_times = peaks((32, 1), (32, 5))
    assert abs(five_times - once) < 4


def burn(seconds: float) -> bytes:
    while time.process_time() < seconds:
        pass
    return b""


def burn_in_a_grandchild(seconds: float) -> bytes:
    if os.fork() == 0:
        burn(seconds)
        os._exit(0)
    os.wait()
    return b""


@pytest.mark.parametrize("work", [burn, burn_in_a_grandchild])
def test_cpu_time(work):
    seconds = child.run_child(partial(work, 0.3), BOUNDS).outside["cpu_seconds"]
    assert 0.3 <= seconds < 3


def test_what_it_returned_and_printed():
    def talk() -> bytes:
        print("to stdout")
        os.write(2, b"\xff to stderr\n")
        return b"bytes"

    ended = child.run_child(talk, BOUNDS)
    assert (ended.state, ended.data, ended.exit) == (child.ENDED, b"bytes", 0)
    assert ended.log == "to stdout\n\ufffd to stderr\n"


def test_an_exception_is_told_in_the_log():
    ended = child.run_child(lambda: 1 / 0, BOUNDS)
    assert (ended.state, ended.data, ended.exit) == (child.ENDED, b"", 1)
    assert "ZeroDivisionError" in ended.log


# ----------------------------------------------------------------------------------------------- the bytes on a network


def send_to_itself(size: int) -> bytes:
    """In a network of its own, a child sends `size` bytes to its parent: (bytes counted before, and after)."""
    if not network.private_loopback():
        return b"no"
    before = network.loopback_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        if os.fork() == 0:
            with socket.create_connection(server.getsockname()) as connection:
                connection.sendall(bytes(size))
            os._exit(0)
        connection, _ = server.accept()
        while connection.recv(1 << 16):
            pass
        os.wait()
    return f"{before} {network.loopback_bytes()}".encode()


def test_bytes_that_a_child_sent():
    size = 3_000_000
    answer = child.run_child(partial(send_to_itself, size), BOUNDS).data.decode()
    if answer == "no":
        pytest.skip("this machine gives no network namespace")
    before, after = map(int, answer.split())
    assert before == 0
    assert size <= after <= 1.05 * size  # headers and acknowledgements


def loopback_of_a_plain_user(dumpable: bool) -> bytes:
    if os.getuid() == 0:
        os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # changing the user took it away
    if not dumpable:
        child.not_dumpable()
    had = os.readlink("/proc/self/ns/net") if dumpable else ""
    got = network.private_loopback()
    if dumpable and not got:
        assert os.readlink("/proc/self/ns/net") == had  # not left in a network whose loopback is down
    return b"yes" if got else b"no"


def test_a_judge_of_a_plain_user_gets_a_network_as_well():
    """A judge closes its memory, and with it the files through which it enters a network; it gets in all the same."""
    assert fcntl
    open_memory, closed_memory = (child.run_child(partial(loopback_of_a_plain_user, d), BOUNDS) for d in (True, False))
    assert open_memory.exit == closed_memory.exit == 0
    if open_memory.data == b"no":
        pytest.skip("this machine gives a plain user no network namespace")
    assert closed_memory.data == b"yes"


def test_a_loopback_that_stays_down_is_not_entered(monkeypatch):
    """Some systems let a plain user in but not switch it on: then one stays outside, where ranks can talk."""

    def denied():
        raise PermissionError

    def where() -> bytes:
        before = os.readlink("/proc/self/ns/net")
        return str((network.private_loopback(), os.readlink("/proc/self/ns/net") == before)).encode()

    monkeypatch.setattr(network, "loopback_up", denied)
    assert child.run_child(where, BOUNDS).data == b"(False, True)"


# --------------------------------------------------------------------------------------------------- nothing of it left


def test_a_child_cannot_come_out_of_its_function():
    """Whatever it does to its own output: it never runs on in its parent's code."""

    def spoil() -> bytes:
        import sys

        sys.stdout.close()
        sys.stderr = None
        return b"done"

    assert child.run_child(spoil, BOUNDS).data == b"done"
    assert child.run_child(lambda: (spoil(), 1 / 0), BOUNDS).exit == 1


def test_its_temporary_files_go_with_it(tmp_path):
    def leave() -> bytes:
        import tempfile

        folder = tempfile.mkdtemp()
        os.mkdir(f"{folder}/shut", 0)
        return folder.encode()

    folder = child.run_child(leave, BOUNDS).data.decode()
    assert os.path.basename(os.path.dirname(folder)).startswith("run-")
    assert not os.path.exists(os.path.dirname(folder))


def test_an_interrupted_parent_leaves_no_child(monkeypatch):
    """Ctrl-C while it waits: the child is ended before the interrupt goes on."""
    before = threading.active_count()

    def interrupt(watch):
        raise KeyboardInterrupt

    monkeypatch.setattr(child._Watch, "until_it_ends", interrupt)
    with pytest.raises(KeyboardInterrupt):
        child.run_child(partial(time.sleep, 1000), BOUNDS)
    assert [p for p in child._processes().values() if p.parent == os.getpid() and p.session == p.pid] == []
    assert threading.active_count() == before
