"""The demonstration: each commissioned lab broken against fixed, on this machine's best device."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from breakfix.catalog import BadLab, Catalog, Lab, UnknownLab
from breakfix.cli import AsJson, BestDevice, app, print_json
from breakfix.evidence import decode
from breakfix.judge import lacking
from breakfix.render import terminal
from breakfix.render.pictures import picture
from breakfix.render.terminal import console, errors
from breakfix.session import Session
from breakfix.verdict import ENVIRONMENT, Verdict

COMMISSIONED = ("lab01", "lab05", "lab08", "lab20", "lab23")


@dataclass(frozen=True)
class Shown:
    """One lab of the demonstration: both verdicts, or why there are none."""

    name: str
    broken: Verdict | None = None
    fixed: Verdict | None = None
    trouble: str = ""

    @property
    def as_meant(self) -> bool:
        """Whether the checks caught the broken one, and passed the fixed one."""
        return bool(self.fixed and self.fixed.passed and self.broken.failed_checks)

    @property
    def exit_code(self) -> int:
        if self.as_meant:
            return 0
        return ENVIRONMENT if self.trouble or not self.fixed else max(1, self.fixed.exit_code)

    def to_json(self) -> dict[str, Any]:
        if self.trouble:
            return {"lab": self.name, "trouble": self.trouble}
        return {"lab": self.name, "broken": self.broken.to_json(), "fixed": self.fixed.to_json()}


@app.command("demo", rich_help_panel="More")
def demo(
    names: Annotated[list[str] | None, typer.Argument(help=f"Labs (default: {' '.join(COMMISSIONED)}).")] = None,
    device: BestDevice = None,
    seed: Annotated[int, typer.Option(help="The seed of every secret input.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Show real failures, broken against fixed.

    For each lab the evidence, both verdicts and a small picture; how it was fixed stays yours to find.
    """
    with Session() as session:
        labs = [_found(session.catalog, name, asked_for=bool(names)) for name in names or COMMISSIONED]
        session.engine.start(*(lab for lab in labs if isinstance(lab, Lab)))  # while this process looks for a GPU
        session.device = device or _best_device()
        if not as_json:
            failures = "1 failure" if len(labs) == 1 else f"{len(labs)} failures"
            console.print(f"{failures} on {session.device}, measured broken and fixed, here and now.\n")
        shown = [_one(session, lab, seed, f"{i} of {len(labs)}", as_json) for i, lab in enumerate(labs, 1)]
    if as_json:
        print_json([s.to_json() for s in shown])
    else:
        _conclude(shown)
    raise typer.Exit(max(s.exit_code for s in shown))


def _found(catalog: Catalog, name: str, asked_for: bool) -> Lab | Shown:
    """The lab, or why it cannot be shown; one that somebody asked for by a wrong name is a wrong use of the command."""
    try:
        return catalog[name]
    except BadLab as error:
        return Shown(name, trouble=f"its files have faults, which `breakfix verify {name}` explains: {error}")
    except UnknownLab as error:
        if asked_for:
            raise
        return Shown(name, trouble=str(error.args[0]))


def _one(session: Session, lab: Lab | Shown, seed: int, position: str, quiet: bool) -> Shown:
    """Measure one lab broken and fixed, and show it."""
    if isinstance(lab, Lab):
        shown, page = _measured(session, lab, seed, position, quiet)
    else:
        shown, page = lab, _trouble(Text(lab.name, "bold"), lab.trouble)
    if not quiet:
        console.print(page, "")
    return shown


def _measured(session: Session, lab: Lab, seed: int, position: str, quiet: bool) -> tuple[Shown, RenderableType]:
    head = Text.assemble((lab.id, "bold"), f"  {lab.title}")
    if missing := lacking(lab, session.device):
        return Shown(lab.id, trouble=f"{missing[0]}: {missing[1]}"), _trouble(head, f"{missing[0]}: {missing[1]}")
    with _progress(quiet) as tell:
        tell(f"{lab.id}, {position}: measuring it broken")
        broken = session.engine.judge(lab, lab.starter, seed, session.device)
        tell(f"{lab.id}, {position}: measuring it fixed")
        fixed = session.engine.judge(lab, lab.solution, seed, session.device)
    return Shown(lab.id, broken, fixed), _page(head, lab, broken, fixed)


@contextmanager
def _progress(quiet: bool) -> Iterator:
    """A function that says what is being done, on a line that goes away."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=errors, transient=True, disable=quiet or not errors.is_terminal) as progress:
        task = progress.add_task("")
        yield lambda what: progress.update(task, description=what)


def _page(head: Text, lab: Lab, broken: Verdict, fixed: Verdict) -> Group:
    """What was seen, the figures, the picture and both verdicts; of the fix only its figures."""
    parts: list[RenderableType] = [Text(lab.alert, "italic")]
    if broken.checks:
        parts.append(Padding(terminal.compared(broken, fixed), (1, 0)))
    if broken.frame and fixed.frame:
        parts += [picture(lab, decode(broken.frame), decode(fixed.frame)), ""]
    parts += [_outcome("broken", broken), _outcome("fixed", fixed), Text(terminal.conditions(fixed), "dim")]
    return Group(head, Padding(Group(*parts), (0, 2)))


def _outcome(side: str, verdict: Verdict) -> Text:
    sign, colour = terminal.SIGNS.get(verdict.state, terminal.NO_VERDICT)
    passed = f", {sum(c.passed for c in verdict.checks)} of {len(verdict.checks)} checks pass" if verdict.checks else ""
    why = f": {verdict.detail.strip().splitlines()[-1]}" if verdict.detail.strip() else ""
    return Text.assemble((f"{side:<7} ", "bold"), (f"{sign} {verdict.state}{passed}", colour), why)


def _trouble(head: Text, what: str) -> Group:
    return Group(head, Padding(Text(f"not shown: {what}", "yellow"), (0, 2)))


def _conclude(shown: list[Shown]) -> None:
    if all(s.as_meant for s in shown):
        every, them = ("It fails", "it passes") if len(shown) == 1 else ("All of them fail", "all pass")
        console.print(f"{every}, and once fixed {them}. How is yours to find:")
        console.print(terminal.step("breakfix start"))
    else:
        names = ", ".join(s.name for s in shown if not s.as_meant)
        console.print(f"{names}: not shown as meant. `breakfix doctor` says what this machine lacks.", style="yellow")


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
