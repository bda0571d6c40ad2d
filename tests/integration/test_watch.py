"""`watch` in a real terminal: it survives whatever editors and people do to the file, and always says what is next."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from breakfix.catalog import Catalog

ROOT = Path(__file__).parents[1] / "fixtures" / "learner_root"
LABS = Catalog.read(ROOT)
FIXED, STARTER = (LABS["lab91"].solution.read_text("utf-8"), LABS["lab91"].starter.read_text("utf-8"))
PATIENCE = 120  # seconds: what does not come by then does not come, however busy the machine is
PROGRAM = f"from breakfix import catalog, cli; catalog.own_root = lambda: catalog.Path({str(ROOT)!r}); cli.main()"
KEYS = r"h hint · r judge again on a fresh seed · n another lab · q quit\n"


class Terminal:
    """A program in a terminal of its own, 100 columns wide."""

    def __init__(self, *arguments: str, cwd: Path, env: dict[str, str]):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments], cwd=cwd, env=env,
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.slave = slave
        self.seen, self.place = "", 0

    def until(self, pattern: str) -> str:
        """What was shown up to `pattern`, from where the last look ended; waits for it."""
        deadline = time.monotonic() + PATIENCE
        while not (match := re.compile(pattern).search(self.seen, self.place)):
            left = deadline - time.monotonic()
            goes_on = left > 0 and self.process.poll() is None
            assert goes_on, f"no {pattern!r} in:\n{self.seen[self.place :]}"
            if select.select([self.master], [], [], min(left, 0.2))[0]:
                self._read()
        start, self.place = self.place, match.end()
        return self.seen[start : self.place]

    def says(self, text: str) -> str:
        """What was shown up to `text`, wherever its lines break, and on to the keys that come last."""
        words = r"\s+".join(map(re.escape, text.split()))
        return self.until(rf"{words}[\s\S]*?{KEYS}")

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> int:
        """The exit code, once it has ended by itself."""
        try:
            return self.process.wait(PATIENCE)
        finally:
            while select.select([self.master], [], [], 0)[0]:
                self._read()

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.master), os.close(self.slave)

    def _read(self) -> None:
        """More of the screen, without colours and without the line that says that something is being measured."""
        raw = os.read(self.master, 1 << 16).decode(errors="replace").replace("\r\n", "\n")
        self.seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", raw)


@pytest.fixture
def environment(tmp_path):
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "BREAKFIX_ROOTS": "", "TERM": "xterm"}
    return {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")} | home


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "my labs [课]"
    folder.mkdir()
    return folder


@pytest.fixture
def watch(folder, environment):
    """Starts `breakfix watch` in a terminal, and ends it however the test ends."""
    terminals = []

    def start(*arguments: str) -> Terminal:
        terminals.append(Terminal("watch", *arguments, cwd=folder, env=environment))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def save_by_rename(file: Path, text: str) -> None:
    """As vim, JetBrains and many others save: a new file takes the name of the old one."""
    file.with_name(".swap").write_text(text, "utf-8")
    os.replace(file.with_name(".swap"), file)


def state(folder: Path) -> dict:
    return json.loads((folder / "breakfix.json").read_text("utf-8"))["labs"]


def test_the_main_loop(watch, folder):
    """One long session with everything that happens to a file while somebody learns."""
    terminal, file = watch("lab91"), folder / "lab91" / "sums.py"
    intro = terminal.until(r"nothing to skip")
    assert "invoice 1042" in intro
    assert "fix lab91/sums.py; what it must do is in lab91/README.md" in intro
    terminal.until(r"The total of 1, 2 and 3 is[\s\S]*> ")
    terminal.press("a\n")
    terminal.until(r"And of nothing[\s\S]*> ")
    terminal.press("\n")
    first = terminal.says("✗ failed lab91")
    assert "you said 6, measured 5" in first
    assert "next: change sums.py and save it" in first

    save_by_rename(file, "def total(:")
    terminal.says("SyntaxError")
    save_by_rename(file, STARTER + "# once more\n")  # the second rename is the one that watching an inode would miss
    terminal.says("✗ failed")
    file.write_text(STARTER + "# in place\n", "utf-8")
    assert "you said" not in terminal.says("✗ failed")

    file.unlink()
    terminal.says("lab91/sums.py is gone\nnext: save it again, or `breakfix start lab91`")
    file.write_text("def total(values): return 1 / 0\n", "utf-8")
    terminal.says("ZeroDivisionError")
    shutil.rmtree(file.parent)
    terminal.says("lab91/sums.py is gone")
    file.parent.mkdir()
    save_by_rename(file, STARTER + "# in a new folder\n")
    terminal.says("✗ failed")
    file.unlink()
    file.mkdir()  # not even a file
    terminal.says("lab91/sums.py is gone")
    file.rmdir()
    file.write_bytes(b"# gr\xf6\xdfer\n")
    terminal.says("is not a text file")

    terminal.press("\x1b[H")  # the Home key, whose letter is no wish for a hint
    terminal.press("h")
    assert "hint 1 of 4" in terminal.until(r"hint number one \[of four\]")
    terminal.press("hr")
    terminal.until(r"hint 2 of 4")
    terminal.says("is not a text file")

    save_by_rename(file, FIXED)
    assert "10 of 10 points" in terminal.until(r"`breakfix explain lab91`")
    terminal.says("fix lab92/means.py")
    shutil.copy(LABS["lab92"].solution, folder / "lab92" / "means.py")
    terminal.until(r"every lab that this machine can run has passed")
    assert terminal.end() == 0
    assert termios.tcgetattr(terminal.slave) == terminal.before  # keys show again, and need Enter again
    assert {name: set(note) & {"passed", "hints"} for name, note in state(folder).items()} == {
        "lab91": {"passed", "hints"}, "lab92": {"passed"},
    }  # fmt: skip
    assert state(folder)["lab91"]["hints"] == 2


def test_another_lab_a_broken_state_file_and_quitting(watch, folder):
    terminal = watch()  # the next lab is the first
    terminal.until(r"nothing to skip[\s\S]*> ")
    terminal.press("\n")
    terminal.until(r"And of nothing[\s\S]*> ")
    terminal.press("\n")
    terminal.until(KEYS)
    terminal.press("n")
    terminal.says("fix lab92/means.py")
    terminal.press("n")  # back to the one that was skipped
    terminal.says("fix lab91/sums.py")

    text = (folder / "breakfix.json").read_text("utf-8")
    (folder / "breakfix.json").write_text("{ half")
    terminal.press("h")
    assert "cannot be read" in terminal.says("next: mend that, then save sums.py again")
    save_by_rename(folder / "lab91" / "sums.py", FIXED)
    told = terminal.says("next: mend that, then save sums.py again")
    assert "✓ passed" in told
    assert "cannot be read" in told
    assert (folder / "breakfix.json").read_text("utf-8") == "{ half"
    (folder / "breakfix.json").write_text(text, "utf-8")
    save_by_rename(folder / "lab91" / "sums.py", FIXED + "\n")
    terminal.until(r"✓ passed[\s\S]*fix lab92/means.py[\s\S]*" + KEYS)

    terminal.press("\x03")  # Ctrl-C is a way to quit, not a fault
    assert terminal.end() == 0
    assert "Traceback" not in terminal.seen
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert "passed" in state(folder)["lab91"]


def test_as_json_and_from_a_pipe(folder, environment):
    """One line per verdict and nothing else; keys come as lines; it goes on when input has ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "watch", "lab91", "--json"], cwd=folder, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    killer = threading.Timer(PATIENCE, process.kill)
    killer.start()
    try:
        first = json.loads(process.stdout.readline())
        process.stdin.write("hurry\nrepeat\n")  # of a line the first letter counts
        process.stdin.close()
        again = json.loads(process.stdout.readline())
        save_by_rename(folder / "lab91" / "sums.py", FIXED)
        rest = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        assert process.stdout.read() == ""
    finally:
        killer.cancel()
        process.kill()
    assert [(v["lab"], v["state"]) for v in (first, again, *rest)] == [
        ("lab91", "failed"), ("lab91", "failed"), ("lab91", "passed"), ("lab92", "failed"),
    ]  # fmt: skip
    assert first["seed"] != again["seed"]
    assert state(folder)["lab91"]["hints"] == 1
