"""The main loop of learning: judge at every save, always show the next step, go on when a lab passes.

The file's content is looked at several times a second. That survives whatever an editor does (write and rename, delete
and create), needs nothing of the file system, and costs less than one judged save in an hour.
"""

import json
import os
import re
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from breakfix.catalog import Lab
from breakfix.render import asking, terminal
from breakfix.session import Judged, Session
from breakfix.verdict import ENVIRONMENT
from breakfix.workspace import WorkspaceError, content_of, shown
from breakfix.zygote import EngineFailed

SPECIAL_KEY = re.compile(r"\x1b(?:[\[O][0-9;]*[A-Za-z~])?")  # arrows and the like, whose letters mean nothing here
TICK = 0.2  # seconds between two looks at the file
KEYS = "h hint · r judge again on a fresh seed · n another lab · q quit"


class Watch:
    """One run of the loop. With `as_json` it prints one line of JSON per verdict and nothing else."""

    def __init__(self, session: Session, as_json: bool = False):
        self.session, self.as_json = session, as_json
        self.console = Console(quiet=True) if as_json else terminal.console
        self.skipped: frozenset[str] = frozenset()

    def run(self, lab: Lab) -> None:
        """Watch `lab`, then each next one, until there is none or the learner quits."""
        following: Lab | None = lab
        try:
            while following:
                following = self._watch(following)
        except KeyboardInterrupt:
            self.console.print()

    def _watch(self, lab: Lab) -> Lab | None:
        """Judge at every save until it passes or is skipped; the lab to go on with, None to end."""
        file = self.session.workspace.start(lab)
        self._introduce(lab, file)
        with Keys() as self.keys:
            for content, key in _events(file, self.keys):
                if key == "q":
                    return None
                if key == "n" and (other := self._other(lab)):
                    return other
                if self._has_passed(lab, file, content, key):
                    return self._next()
        return None

    def _has_passed(self, lab: Lab, file: Path, content: str | None, key: str) -> bool:
        """Do what a key or a save asks for; whether the file as it is now has passed."""
        try:
            if key == "h":
                self._hint(lab)
            elif key in ("", "r"):
                return self._judge(lab, file, content, fresh=key == "r")
        except (WorkspaceError, EngineFailed, OSError) as error:  # nothing that the next save could not mend
            terminal.errors.print(str(error), style="yellow", markup=False, soft_wrap=True)
            self._say_next(f"mend that, then save {file.name} again")
        return False

    def _introduce(self, lab: Lab, file: Path) -> None:
        self.console.rule(escape(terminal.heading(lab)))
        self.console.print(Text(lab.alert, "italic"))
        readme = escape(shown(file.parent / "README.md"))
        self.console.print(f"fix [bold]{escape(shown(file))}[/]; what it must do is in {readme}\n")
        if not self.as_json and asking.can_ask():
            self.session.predict(lab)

    def _judge(self, lab: Lab, file: Path, content: str | None, fresh: bool) -> bool:
        if content is None:
            self.console.print(f"[yellow]{escape(shown(file))} is gone[/]")
            self._say_next(f"save it again, or `breakfix start {lab.id}` in another terminal")
            return False
        with self.console.status("measuring"):
            judged = self.session.judge(lab, file, fresh=fresh)
        self._show(lab, judged)
        self.session.record(lab, judged)
        if judged.verdict.passed and self.session.workspace.passed(lab):
            return True
        lacking = judged.verdict.exit_code == ENVIRONMENT
        self._say_next("another lab, or another machine" if lacking else f"change {file.name} and save it")
        return False

    def _show(self, lab: Lab, judged: Judged) -> None:
        if self.as_json:
            return print(json.dumps(judged.verdict.to_json(), allow_nan=False), flush=True)
        self.console.print(terminal.verdict(judged.verdict, lab))
        for scored in self.session.scored_predictions(lab):
            self.console.print(asking.scored(scored))
        if judged.verdict.passed:
            self.console.print(f"[dim]`breakfix explain {lab.id}` tells the cause and other fixes[/]\n")

    def _say_next(self, what: str) -> None:
        ways = f"{KEYS}{'' if self.keys.single else ' · then Enter'}" if self.keys.open else "Ctrl-C quits"
        self.console.print(f"next: [bold]{escape(what)}[/]\n[dim]{ways}[/]\n")

    def _hint(self, lab: Lab) -> None:
        seen = self.session.workspace.next_hint(lab)
        self.console.print(f"[bold]hint {seen} of {len(lab.hints)}[/]  {escape(lab.hints[seen - 1])}\n")

    def _next(self) -> Lab | None:
        """The lab to go on with: skipped ones come last."""
        following = self.session.next_lab(self.skipped)
        if following is None and self.skipped:
            self.skipped = frozenset()
            following = self.session.next_lab()
        if following is None:
            self.console.print("[bold green]every lab that this machine can run has passed[/]")
        return following

    def _other(self, lab: Lab) -> Lab | None:
        """Another lab, since the learner wants this one later."""
        for skipped in (self.skipped | {lab.id}, frozenset({lab.id})):
            if other := self.session.next_lab(skipped):
                self.skipped = skipped
                return other
        self.console.print("no other lab is left")
        return None


class Keys:
    """The keys of a terminal, one at a time where it allows, else line by line; none once input has ended."""

    def __init__(self):
        self.open = sys.stdin is not None and not sys.stdin.closed and sys.platform != "win32"
        self.single = False

    def __enter__(self) -> "Keys":
        if self.open and sys.stdin.isatty():
            import termios
            import tty

            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin, termios.TCSANOW)
            self.single = True
        return self

    def __exit__(self, *_) -> None:
        if self.single:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSANOW, self._before)

    def within(self, seconds: float) -> str:
        """The keys that are pressed within so many seconds, in lower case."""
        if not self.open:
            time.sleep(seconds)
            return ""
        if not select.select([sys.stdin], [], [], seconds)[0]:
            return ""
        pressed = os.read(sys.stdin.fileno(), 1024)  # not readline(), which would keep further lines to itself
        self.open = bool(pressed)
        text = SPECIAL_KEY.sub("", pressed.decode(errors="ignore")).lower()
        return text if self.single else "".join(line.strip()[:1] for line in text.splitlines())


def _events(file: Path, keys: Keys) -> Iterator[tuple[str | None, str]]:
    """(content, key): at once, then whenever the file holds something else, and whenever a key is pressed."""
    content = content_of(file)
    yield content, ""
    while True:
        for key in keys.within(TICK):
            if key.isalpha():
                yield content, key
        if content_of(file) != content:
            content = _settled(file)
            yield content, ""


def _settled(file: Path) -> str | None:
    """The content once it stays the same for a moment: some editors empty a file before they fill it."""
    content, before = content_of(file), object()
    while content != before:
        time.sleep(TICK / 4)
        before, content = content, content_of(file)
    return content
