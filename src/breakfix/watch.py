"""The main loop of learning: judge at every save, always show the next step, go on when a lab passes."""

import select
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.markup import escape

from breakfix.cache import digest
from breakfix.catalog import Lab
from breakfix.render import terminal
from breakfix.render.terminal import console
from breakfix.session import Session
from breakfix.workspace import WorkspaceError

TICK_MS = 300
KEYS = "[dim]Enter one of: [bold]h[/] hint · [bold]r[/] judge again on a fresh seed · [bold]n[/] next lab · [bold]q[/] quit[/]"


class Watch:
    """One run of the loop."""

    def __init__(self, session: Session):
        self.session = session
        self.listening = sys.stdin.isatty() or not sys.stdin.closed

    def run(self, lab: Lab | None) -> None:
        """Watch `lab`, then each next one, until there is none or the learner quits."""
        while lab is not None:
            if not self._until_passed(lab):
                return
            lab = self.session.workspace.next_lab(self.session.catalog)
        console.print("[bold green]every lab has passed[/]")

    def _until_passed(self, lab: Lab) -> bool:
        """Judge at every save until it passes or is skipped; False if the learner quits."""
        file = self.session.workspace.start(lab)
        console.rule(f"{lab.id}  {escape(lab.title)}")
        console.print(
            f"[italic]{escape(lab.alert)}[/]\nfix [bold]{escape(str(file))}[/]; {escape(str(file.parent / 'README.md'))} says what it must do"
        )
        judged = None
        for content, key in self._events(file):
            if key == "q":
                return False
            if key == "n":
                return self._skip(lab)
            if key == "h":
                self._hint(lab)
            elif (content != judged or key == "r") and self._judge(lab, content, fresh=key == "r"):
                return True
            judged = content
        return False

    def _judge(self, lab: Lab, content: str | None, fresh: bool) -> bool:
        if content is None:
            name = escape(str(self.session.workspace.file(lab)))
            console.print(f"[yellow]{name} is gone[/]; save it again, or `breakfix reset {lab.id}` in another terminal")
            return False
        try:
            with console.status("measuring"):
                verdict, _ = self.session.judge_own(lab, fresh=fresh)
        except (WorkspaceError, OSError):  # deleted or half written in the meantime: the next look sees it
            return False
        console.print(terminal.verdict(verdict, lab))
        if not verdict.passed:
            console.print(f"next: change [bold]{escape(self.session.workspace.file(lab).name)}[/] and save it")
            console.print(KEYS)
        return verdict.passed

    def _hint(self, lab: Lab) -> None:
        from breakfix.cli.learner import next_hint

        seen = next_hint(self.session, lab)
        console.print(f"[bold]hint {seen} of {len(lab.hints)}[/]  {escape(lab.hints[seen - 1])}")

    def _skip(self, lab: Lab) -> bool:
        labs = list(self.session.catalog)
        later = [other for other in labs[labs.index(lab) + 1 :] if not self.session.workspace.passed(other)]
        if not later:
            console.print("there is no later lab")
            return self._until_passed(lab)
        return self._until_passed(later[0])

    def _events(self, file: Path) -> Iterator[tuple[str | None, str]]:
        """(content, key) at once and then whenever the file may have changed or a key was entered."""
        yield _content(file), ""
        for _ in _wakes(file.parent):
            if (key := self._key()) is None:
                self.listening = False
            yield _content(file), key or ""

    def _key(self) -> str | None:
        """The key that was entered, or nothing; None at the end of input."""
        if not self.listening or sys.platform == "win32" or not select.select([sys.stdin], [], [], 0)[0]:
            return ""
        line = sys.stdin.readline()
        return line.strip().lower()[:1] if line else None


def _content(file: Path) -> str | None:
    """What the file holds now: editors replace files, so its content and not its date tells a change."""
    try:
        return digest(file.read_bytes())
    except OSError:
        return None


def _wakes(folder: Path) -> Iterator[None]:
    """Whenever something in `folder` changes, and every TICK_MS in case the folder itself was replaced."""
    try:
        from watchfiles import watch
    except ImportError:
        raise WorkspaceError("watch needs watchfiles: pip install 'breakfix[watch]'") from None
    while True:
        seen = folder if folder.is_dir() else folder.parent
        for _ in watch(seen, rust_timeout=TICK_MS, yield_on_timeout=True, recursive=False, raise_interrupt=True):
            yield
            if seen != (folder if folder.is_dir() else folder.parent):
                break
