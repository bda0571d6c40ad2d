"""Commands for whoever learns."""

import bdb
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from breakfix import subject
from breakfix.catalog import Lab
from breakfix.cli import AsJson, Device, LabName, LabNames, Seed, app, print_json
from breakfix.judge import fresh_seed, lacking
from breakfix.render import asking, tables, terminal
from breakfix.render.evidence import evidence_table
from breakfix.render.terminal import console
from breakfix.session import Judged, Session
from breakfix.verdict import ENVIRONMENT, ERROR, Verdict
from breakfix.workspace import WorkspaceError, shown

FIRST = "To learn"
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command(rich_help_panel=FIRST)
def start(name: LabName = None, as_json: AsJson = False) -> None:
    """Begin a lab: makes ./lab08/ with the file to fix.

    Without a name, the next one. What is there already is left as it is.
    """
    with Session() as session:
        lab = session.lab_or_next(name)
        existed = session.workspace.file(lab).exists()
        file = session.workspace.start(lab)
    if as_json:
        return print_json({"lab": lab.id, "file": str(file), "existed": existed})
    console.print(terminal.readme((file.parent / "README.md").read_text("utf-8", errors="replace")))
    console.print(f"\n{'Yours already' if existed else 'Yours to fix'}: [bold]{escape(shown(file))}[/]")
    if missing := lacking(lab, "cpu"):
        console.print(f"[yellow]{missing[0]}[/]: {escape(missing[1])}")
    console.print(terminal.step(f"breakfix run {lab.id}", "to see the failure measured"))


@app.command(rich_help_panel=FIRST)
def run(name: LabName = None, seed: Seed = None, device: Device = "cpu", as_json: AsJson = False) -> None:
    """Measure your file and print the evidence.

    In this very process, so that breakpoint() and a debugger work.
    """
    with Session(device=device) as session:
        lab = session.lab(name)
        file = session.file(lab).absolute()
        _leave_if_lacking(lab, device, as_json)
        if not as_json and asking.can_ask():
            session.predict(lab)
        job = subject.Job.of_file(lab, file, fresh_seed() if seed is None else seed, device)
        evidence = _measured(job, as_json)
        if as_json:
            return print_json({"lab": lab.id, "seed": job.seed, "device": device, "evidence": terminal.plain(evidence)})
        console.print(Text(f"Evidence of {shown(file)}, seed {job.seed}, {device}", "bold"))
        console.print(evidence_table(evidence))
        is_starter = job.source == lab.starter.read_bytes()
        for scored in session.scored_predictions(lab, evidence if is_starter else None):
            console.print(asking.scored(scored))
        console.print(terminal.step(f"breakfix check {lab.id}", "to have it graded"))


def _measured(job: subject.Job, as_json: bool) -> dict[str, Any]:
    """The evidence; what goes wrong is told in the learner's own lines, and is the end of the command."""
    try:
        with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what the file prints is no JSON
            return subject.measure(job)
    except bdb.BdbQuit:
        told = "left the debugger"
    except (Exception, SystemExit) as error:
        told = subject.own_words(error, job.path)
    if as_json:
        print_json({"lab": job.lab.id, "seed": job.seed, "device": job.device, "state": ERROR, "detail": told})
    else:
        console.print(f"[bold red]! {ERROR}[/]  {escape(terminal.heading(job.lab))}\n")
        console.print(told, markup=False, soft_wrap=True)
        console.print("\n", terminal.step("breakfix run", f"again, once {shown(Path(job.path))} is mended"), sep="")
    raise typer.Exit(1)


@app.command(rich_help_panel=FIRST)
def check(
    names: LabNames = None,
    file: Annotated[
        Path | None, typer.Option(help="Judge this file instead of yours.", exists=True, dir_okay=False)
    ] = None,
    seed: Seed = None,
    device: Device = "cpu",
    fresh: Annotated[bool, typer.Option("--fresh", help="Judge again although nothing has changed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Have your file judged.

    It is measured in a process of its own, within the lab's bounds; then the checks compare the evidence with a
    reference of their own. A file that has not changed since its last verdict gets that one again.
    """
    with Session(device=device) as session:
        labs = [session.lab(name) for name in names or [None]]
        if file and len(labs) > 1:
            raise typer.BadParameter("one file belongs to one lab")
        files = [file or session.file(lab) for lab in labs]  # before anything is judged: is each of them there?
        session.engine.start(*labs)
        verdicts = [
            _check_one(session, lab, path, seed, fresh, own=file is None, quiet=as_json)
            for lab, path in zip(labs, files, strict=True)
        ]
    if as_json:
        print_json(verdicts[0].to_json() if len(verdicts) == 1 else [v.to_json() for v in verdicts])
    raise typer.Exit(max(v.exit_code for v in verdicts))


def _check_one(
    session: Session, lab: Lab, path: Path, seed: int | None, fresh: bool, own: bool, quiet: bool
) -> Verdict:
    """The verdict on one file; on the learner's `own` file it is remembered, and says what to do next."""
    if own and not quiet and asking.can_ask():
        session.predict(lab)
    with nullcontext() if quiet else console.status(f"measuring {escape(shown(path))}"):
        judged = session.judge(lab, path, seed, fresh)
    if not quiet:
        _show(session, lab, judged, own)
    if own:
        session.record(lab, judged)
    if own and not quiet:
        _say_next(session, lab, judged.verdict)
    return judged.verdict


def _show(session: Session, lab: Lab, judged: Judged, own: bool) -> None:
    console.print(terminal.verdict(judged.verdict, lab))
    if judged.kept:
        console.print("unchanged since this verdict; --fresh judges it again", style="dim")
    if judged.content is None:
        console.print("the file was saved while it was being judged: check it again", style="yellow")
    for scored in session.scored_predictions(lab) if own else []:
        console.print(asking.scored(scored))


def _say_next(session: Session, lab: Lab, verdict: Verdict) -> None:
    if verdict.passed:
        console.print(terminal.step(f"breakfix explain {lab.id}", "for the cause, other fixes, and where it was seen"))
        if following := session.next_lab():
            console.print(terminal.step(f"breakfix start {following.id}", following.title))
    elif verdict.checks:
        file = shown(session.workspace.file(lab))
        console.print(terminal.step(f"breakfix hint {lab.id}", f"if you are stuck; else change {file} and check again"))
    elif verdict.exit_code != ENVIRONMENT:
        console.print(terminal.step(f"breakfix run {lab.id}", "measures in the foreground, where breakpoint() works"))


@app.command(rich_help_panel=FIRST)
def watch(name: LabName = None, device: Device = "cpu", as_json: AsJson = False) -> None:
    """Judge at every save, and go on when a lab passes.

    With --json, one line of JSON per verdict.
    """
    from breakfix.watch import Watch

    with Session(device=device) as session:
        lab = session.lab_or_next(name)
        session.engine.start(lab)
        Watch(session, as_json).run(lab)


@app.command(rich_help_panel=FIRST)
def hint(
    name: LabName = None,
    again: Annotated[bool, typer.Option("--again", help="Show those you have seen, no new one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the next of four hints.

    Where to look, what to measure, which mechanism, which API.
    """
    with Session() as session:
        lab = session.lab(name)
        seen = session.workspace.note(lab).get("hints", 0) if again else session.workspace.next_hint(lab)
    if as_json:
        return print_json({"lab": lab.id, "seen": seen, "of": len(lab.hints), "hints": lab.hints[:seen]})
    for number, text in enumerate(lab.hints[:seen], 1):
        console.print(f"[bold]hint {number} of {len(lab.hints)}[/]  {escape(text)}\n")
    if not seen:
        console.print("no hint taken yet")
    elif seen == len(lab.hints):
        console.print(terminal.step(f"breakfix explain {lab.id}", "tells the cause; there are no more hints"))


@app.command(rich_help_panel=FIRST)
def explain(name: LabName = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Tell the cause, other fixes, and how to find it elsewhere.

    Before the lab has passed it asks once, and that is recorded.
    """
    with Session() as session:
        lab = session.lab(name)
        text = (lab.solution_path / "README.md").read_text("utf-8")
        may_see(session, lab, yes, "the explanation")
        with nullcontext() if as_json else console.status("measuring broken and fixed"):
            broken, fixed = session.broken_and_fixed(lab)
    if as_json:
        table = tables.markdown(tables.deciding(tables.rows(broken, fixed)))
        return print_json({"lab": lab.id, "explanation": text.replace("{evidence}", table)})
    before, placeholder, after = text.partition("{evidence}")
    console.print(terminal.readme(before))
    if placeholder:
        console.print("", terminal.compared(broken, fixed), Text(terminal.conditions(fixed), "dim"), "", sep="\n")
    console.print(terminal.readme(after))


# ------------------------------------------------------------------------------------------------------------------


def _leave_if_lacking(lab: Lab, device: str, as_json: bool) -> None:
    if missing := lacking(lab, device):
        if as_json:
            print_json({"lab": lab.id, "device": device, "state": missing[0], "detail": missing[1]})
        else:
            console.print(f"[yellow]{missing[0]}[/]: {escape(missing[1])}")
        raise typer.Exit(ENVIRONMENT)


def may_see(session: Session, lab: Lab, yes: bool, what: str) -> None:
    """Before a pass, ask once, and record that it was seen; leave if the answer is no."""
    if session.workspace.passed(lab) or "solution_seen" in session.workspace.note(lab):
        return
    if not yes and not asking.can_ask():
        raise WorkspaceError(f"{lab.id} has not passed yet; --yes shows {what} all the same")
    if not yes and not asking.yes(f"{lab.id} has not passed yet. Show {what} all the same?"):
        raise typer.Exit(1)
    session.workspace.record_solution_seen(lab)
