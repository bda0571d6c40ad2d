"""The demonstration: each commissioned lab broken against fixed, on this machine's best device."""

from typing import Annotated

import typer
from rich.console import Group
from rich.padding import Padding
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from breakfix import evidence
from breakfix.catalog import Lab
from breakfix.cli import AsJson, app, print_json
from breakfix.judge import lacking
from breakfix.render import terminal
from breakfix.render.pictures import picture
from breakfix.render.terminal import console, errors
from breakfix.session import Session
from breakfix.verdict import ENVIRONMENT, Verdict

COMMISSIONED = ("lab01", "lab05", "lab08", "lab20", "lab23")


@app.command("demo", rich_help_panel="More")
def demo(
    names: Annotated[list[str] | None, typer.Argument(help="Labs (default: lab01 lab05 lab08 lab20 lab23).")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the best there is).")] = None,
    seed: Annotated[int, typer.Option(help="The seed of every secret input.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Show real failures broken against fixed: evidence, verdicts, a small picture. How they were fixed stays yours to find."""
    device = device or _best_device()
    with Session(device=device) as session:
        session.engine.start()
        labs = session.labs_here(names or list(COMMISSIONED))
        if not as_json:
            console.print(
                f"{len(labs)} failures on {device}, each measured broken and fixed. Nothing here is recorded or mocked.\n"
            )
        pairs = [_one(session, lab, seed, as_json) for lab in labs]
    if as_json:
        print_json([{"lab": b.lab, "broken": b.to_json(), "fixed": f.to_json()} for b, f in pairs])
    elif not all(_shown_as_meant(pair) for pair in pairs):
        console.print(
            "not every lab showed what it should; `breakfix doctor` says what this machine lacks", style="yellow"
        )
    else:
        console.print("All of them fail, and all of them pass once fixed. Your turn: [bold cyan]breakfix start[/]")
    raise typer.Exit(0 if all(map(_shown_as_meant, pairs)) else _worst(pairs))


def _one(session: Session, lab: Lab, seed: int, as_json: bool) -> tuple[Verdict, Verdict]:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=errors, transient=True, disable=as_json or not errors.is_terminal) as progress:
        task = progress.add_task(f"{lab.id}: measuring it broken")
        broken = session.engine.judge(lab, lab.starter, seed, session.device)
        progress.update(task, description=f"{lab.id}: measuring it fixed")
        fixed = session.engine.judge(lab, lab.solution, seed, session.device)
    if not as_json:
        console.print(_page(lab, broken, fixed), "")
    return broken, fixed


def _page(lab: Lab, broken: Verdict, fixed: Verdict) -> Group:
    head = Text.assemble((lab.id, "bold"), f"  {lab.title}")
    if missing := lacking(lab, broken.device):
        return Group(head, Text(f"  {missing[0]}: {missing[1]}", style="yellow"))
    parts = [
        head,
        Padding(Text(lab.alert, style="italic dim"), (0, 2)),
        Padding(terminal.compared(broken, fixed), (0, 2)),
    ]
    if broken.frame and fixed.frame:
        parts.append(picture(lab, evidence.decode(broken.frame), evidence.decode(fixed.frame)))
    return Group(*parts, _outcomes(broken, fixed))


def _outcomes(broken: Verdict, fixed: Verdict) -> Text:
    line = Text("  ")
    for name, verdict in (("broken", broken), ("fixed", fixed)):
        sign, colour = terminal.SIGNS.get(verdict.state, ("✗", "red"))
        passed = sum(c.passed for c in verdict.checks)
        line.append(f"{name}: {sign} {verdict.state}, {passed} of {len(verdict.checks)} checks   ", colour)
    return line.append(terminal.conditions(fixed), "dim")


def _shown_as_meant(pair: tuple[Verdict, Verdict]) -> bool:
    broken, fixed = pair
    return not broken.passed and bool(broken.checks) and fixed.passed


def _worst(pairs: list[tuple[Verdict, Verdict]]) -> int:
    codes = {fixed.exit_code for _, fixed in pairs}
    return ENVIRONMENT if ENVIRONMENT in codes else max(codes | {1})


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
