"""Further commands for whoever learns: how far she is, what differs, where to look, what this machine can do."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from breakfix import symptoms
from breakfix.catalog import Lab
from breakfix.cli import AsJson, LabName, app, print_json
from breakfix.cli.learner import Yes, may_see
from breakfix.judge import lacking
from breakfix.render import listing, terminal
from breakfix.render.terminal import console, errors
from breakfix.session import Session
from breakfix.workspace import PASSED, shown

MORE = "More"


@app.command("list", rich_help_panel=MORE)
def list_labs(as_json: AsJson = False) -> None:
    """List the labs and how far you are."""
    with Session() as session:
        rows = [_row(session, lab) for lab in session.catalog]
    if as_json:
        return print_json(rows)
    console.print(listing.table(rows))
    console.print(f"{sum(r['status'] == PASSED for r in rows)} of {len(rows)} passed", style="dim")
    for name, error in session.catalog.bad.items():
        errors.print(f"{name} cannot be read: {error}", style="red", markup=False, soft_wrap=True)


def _row(session: Session, lab: Lab) -> dict[str, Any]:
    note, missing = session.workspace.note(lab), lacking(lab, "cpu")
    return {
        "lab": lab.id, "title": lab.title, "track": lab.track, "level": lab.level, "minutes": lab.minutes,
        "needs": list(lab.needs), "lacking": missing[0] if missing else None,
        "status": session.workspace.status(lab), "hints": note.get("hints", 0),
        "solution_seen": note.get("solution_seen"),
    }  # fmt: skip


@app.command(rich_help_panel=MORE)
def diff(
    name: LabName = None,
    starter: Annotated[bool, typer.Option("--starter", help="To the starter: what you have changed.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show the difference from your file to the solution.

    Before the lab has passed it asks once, and that is recorded.
    """
    with Session() as session:
        lab = session.lab(name)
        session.file(lab)
        if not starter:
            may_see(session, lab, yes, "the solution")
        against, other = (lab.starter, "starter") if starter else (lab.solution, "solution")
        lines = session.workspace.diff(lab, against, other)
    if as_json:
        return print_json({"lab": lab.id, "against": other, "diff": lines})
    for line in lines or ["no difference"]:
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[0], "")
        console.print(Text(line, colour), soft_wrap=True)  # a patch must stay a patch, however narrow the terminal


@app.command(rich_help_panel=MORE)
def reset(name: LabName = None, as_json: AsJson = False) -> None:
    """Begin a lab anew; your file is kept under another name."""
    with Session() as session:
        lab = session.lab(name)
        kept, file = session.workspace.reset(lab), session.workspace.file(lab)
    if as_json:
        return print_json({"lab": lab.id, "file": str(file), "kept": str(kept) if kept else None})
    console.print(f"{escape(shown(file))} is the starter again")
    if kept:
        console.print(f"yours is kept as [bold]{escape(shown(kept))}[/]")


@app.command(rich_help_panel=MORE)
def symptom(
    words: Annotated[
        list[str] | None, typer.Argument(help="An error message or a complaint; without it, standard input is read.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read a log or a traceback from this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the labs that answer an error message.

    Or a whole traceback, or a complaint without any message; in English or Chinese.
    """
    answer = symptoms.find(_read(file) if file else _said(words), Session().catalog)
    if as_json:
        print_json({"covered": answer.covered, "labs": [_match(m) for m in answer.matches]})
    else:
        _tell(answer)
    raise typer.Exit(0 if answer.covered else 1)


def _match(m: symptoms.Match) -> dict:
    return {
        "lab": m.lab.id,
        "title": m.lab.title,
        "score": round(m.score, 3),
        "words": list(m.words),
        "symptom": m.symptom,
        "probe": m.probe,
    }


def _tell(answer: symptoms.Answer) -> None:
    if not answer.covered:
        console.print("no lab covers this" + ("; nearest:" if answer.matches else ""))
    for m in answer.matches:
        console.print(Text.assemble((m.lab.id, "bold"), f"  {m.lab.title}"))
        console.print(Text(f"       {m.score:.2f}  for: {', '.join(m.words) or '-'}; like: {m.symptom}", "dim"))
    if answer.covered:
        first = answer.matches[0]
        if first.probe:
            console.print(f"in your own script: [bold]{first.probe}[/]; `breakfix explain {first.lab.id}` shows how")
        console.print(terminal.step(f"breakfix start {first.lab.id}"))


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from None


def _said(words: Sequence[str] | None) -> str:
    if words and list(words) != ["-"]:
        return " ".join(words)
    if sys.stdin is None:
        raise typer.BadParameter("write the error message behind `symptom`")
    if sys.stdin.isatty():
        errors.print("Paste the error message, then press Ctrl-D on a new line.", style="dim")
    return sys.stdin.read()


@app.command(rich_help_panel=MORE)
def doctor(as_json: AsJson = False) -> None:
    """Say what this machine can run.

    Versions, devices, folders, what the engine can see, and which labs.
    """
    from breakfix.doctor import examine

    report = examine(Session().catalog)
    print_json(report) if as_json else console.print(listing.report(report))
