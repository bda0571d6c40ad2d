"""Commands for whoever learns."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from breakfix import subject, symptoms
from breakfix.catalog import Lab
from breakfix.cli import AsJson, Device, LabName, Seed, app, print_json
from breakfix.judge import fresh_seed, lacking
from breakfix.render import terminal
from breakfix.render.terminal import console
from breakfix.session import Session
from breakfix.verdict import ENVIRONMENT, Verdict
from breakfix.workspace import WorkspaceError

FIRST, MORE = "To learn", "More"


@app.command(rich_help_panel=FIRST)
def start(name: LabName = None, as_json: AsJson = False) -> None:
    """Begin a lab: makes ./lab08/ with the file to fix. Never overwrites. Without a name, the next one."""
    session = Session()
    lab = session.workspace.lab_here(session.catalog, name) if name else _next(session)
    existed = session.workspace.file(lab).exists()
    file = session.workspace.start(lab)
    if as_json:
        return print_json({"lab": lab.id, "file": str(file), "existed": existed})
    console.print(terminal.readme((file.parent / "README.md").read_text("utf-8")))
    console.print(f"\n{'Yours already' if existed else 'Yours to fix'}: [bold]{escape(_shown(file))}[/]")
    _next_step(f"breakfix run {lab.id}", "to see the failure measured")


@app.command(rich_help_panel=FIRST)
def run(name: LabName = None, seed: Seed = None, device: Device = "cpu", as_json: AsJson = False) -> None:
    """Measure your file in this very process, where breakpoint() works, and print the evidence."""
    session = Session()
    (lab,) = session.labs_here([name] if name else None)
    file = session.file(lab)
    _leave_if_lacking(lab, device, as_json)
    if not as_json:
        _ask_predictions(session, lab)
    job = subject.Job.of_file(lab, file, fresh_seed() if seed is None else seed, device)
    try:
        evidence = subject.measure(job)
    except Exception as error:
        console.print(subject.own_words(error, job.path), style="red", markup=False)
        raise typer.Exit(1) from None
    if as_json:
        return print_json({"lab": lab.id, "seed": job.seed, "device": device, "evidence": terminal.plain(evidence)})
    console.print(terminal.evidence_table(evidence, f"Evidence of {_shown(file)}, seed {job.seed}, {device}"))
    _show_predictions(session, lab)
    _next_step(f"breakfix check {lab.id}", "to have it graded")


@app.command(rich_help_panel=FIRST)
def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Labs, as in lab08 or 8. Inside a lab's folder it may be left out.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Judge this file instead of yours.", dir_okay=False)] = None,
    seed: Seed = None,
    device: Device = "cpu",
    fresh: Annotated[bool, typer.Option("--fresh", help="Judge again although nothing has changed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Have your file judged: measured in a process of its own, then checked against a reference."""
    with Session(device=device) as session:
        session.engine.start()
        labs = session.labs_here(names)
        if file and len(labs) > 1:
            raise typer.BadParameter("one file belongs to one lab")
        verdicts = [_check_one(session, lab, file, seed, fresh, as_json) for lab in labs]
    if as_json:
        print_json(verdicts[0].to_json() if len(verdicts) == 1 else [v.to_json() for v in verdicts])
    raise typer.Exit(max(v.exit_code for v in verdicts))


def _check_one(session: Session, lab: Lab, file: Path | None, seed: int | None, fresh: bool, as_json: bool) -> Verdict:
    path = file or session.file(lab)
    if as_json:
        return (session.judge(lab, path, seed, fresh) if file else session.judge_own(lab, seed, fresh))[0]
    _ask_predictions(session, lab) if not file else None
    with console.status(f"measuring {_shown(path)}"):
        verdict, kept = session.judge(lab, path, seed, fresh) if file else session.judge_own(lab, seed, fresh)
    console.print(terminal.verdict(verdict, lab))
    if kept:
        console.print("unchanged since this verdict; --fresh judges it again", style="dim")
    if not file:
        _show_predictions(session, lab)
        after_verdict(session, lab, verdict)
    return verdict


def after_verdict(session: Session, lab: Lab, verdict: Verdict) -> None:
    """Say what to do next."""
    if verdict.passed:
        _next_step(f"breakfix explain {lab.id}", "for the cause, other fixes, and where it was seen")
        if following := session.workspace.next_lab(session.catalog):
            _next_step(f"breakfix start {following.id}", following.title)
    elif verdict.checks:
        _next_step(
            f"breakfix hint {lab.id}",
            f"if you are stuck; else change {_shown(session.workspace.file(lab))} and check again",
        )
    elif verdict.exit_code != ENVIRONMENT:
        _next_step(f"breakfix run {lab.id}", "measures it in the foreground, where a breakpoint() works")


@app.command(rich_help_panel=FIRST)
def watch(name: LabName = None, device: Device = "cpu") -> None:
    """Judge at every save, say what is next, and go on to the next lab when one passes."""
    from breakfix.watch import Watch

    with Session(device=device) as session:
        session.engine.start()
        lab = session.workspace.lab_here(session.catalog, name) if name else _next(session)
        Watch(session).run(lab)


@app.command(rich_help_panel=FIRST)
def hint(
    name: LabName = None,
    again: Annotated[bool, typer.Option("--again", help="Show those you have seen, no new one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the next of four hints: where to look, what to measure, which mechanism, which API."""
    session = Session()
    (lab,) = session.labs_here([name] if name else None)
    seen = next_hint(session, lab, again)
    if as_json:
        return print_json({"lab": lab.id, "seen": seen, "of": len(lab.hints), "hints": lab.hints[:seen]})
    for number, text in enumerate(lab.hints[:seen], 1):
        console.print(f"[bold]hint {number} of {len(lab.hints)}[/]  {escape(text)}")
    if not seen:
        console.print("no hint taken yet")


def next_hint(session: Session, lab: Lab, again: bool = False) -> int:
    """How many hints the learner has now seen, one more than before unless `again`."""
    note = session.workspace.note(lab)
    seen = min(note.get("hints", 0) + (0 if again else 1), len(lab.hints))
    if seen != note.get("hints", 0):
        note["hints"] = seen
        session.workspace.save()
    return seen


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command(rich_help_panel=FIRST)
def explain(name: LabName = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Tell the cause, the evidence, other right fixes, wrong fixes, and how to find it in your own code."""
    with Session() as session:
        (lab,) = session.labs_here([name] if name else None)
        _may_spoil(session, lab, yes, "the explanation")
        text = (lab.solution_path / "README.md").read_text("utf-8")
        if as_json:
            return print_json({"lab": lab.id, "explanation": text})
        before, _, after = text.partition("{evidence}")
        console.print(terminal.readme(before))
        with console.status("measuring broken and fixed"):
            broken, fixed = session.broken_and_fixed(lab)
        console.print(terminal.compared(broken, fixed), terminal.conditions(fixed), sep="\n")
        console.print(terminal.readme(after))


@app.command("list", rich_help_panel=MORE)
def list_labs(as_json: AsJson = False) -> None:
    """List the labs and how far you are."""
    session = Session()
    rows = [_row(session, lab) for lab in session.catalog]
    if as_json:
        return print_json(rows)
    table = Table(
        "", "lab", "title", "track", "level", "minutes", "needs", "yours", box=None, pad_edge=False, header_style="dim"
    )
    for row in rows:
        mark = {"passed": "[green]✓[/]", "not started": " "}.get(row["status"], "[yellow]…[/]")
        needs = ", ".join(row["needs"])
        table.add_row(
            mark, row["lab"], row["title"], row["track"], str(row["level"]), str(row["minutes"]), needs, row["status"]
        )
    console.print(table)
    console.print(f"{sum(r['status'] == 'passed' for r in rows)} of {len(rows)} passed", style="dim")
    for name, error in session.catalog.bad.items():
        console.print(f"{name} cannot be read: {error}", style="red", markup=False)


def _row(session: Session, lab: Lab) -> dict:
    note = session.workspace.state["labs"].get(lab.id, {})
    return {
        "lab": lab.id, "title": lab.title, "track": lab.track, "level": lab.level, "minutes": lab.minutes,
        "needs": list(lab.needs), "status": session.workspace.status(lab), "hints": note.get("hints", 0),
        "spoiled": note.get("spoiled", False),
    }  # fmt: skip


@app.command(rich_help_panel=MORE)
def diff(
    name: LabName = None,
    starter: Annotated[
        bool, typer.Option("--starter", help="What you have changed, instead of what the solution would.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show the difference from your file to the solution, or from yours to the starter."""
    session = Session()
    (lab,) = session.labs_here([name] if name else None)
    session.file(lab)
    if not starter:
        _may_spoil(session, lab, yes, "the solution")
    other = (lab.starter, "starter") if starter else (lab.solution, "solution")
    lines = session.workspace.diff(lab, *other)
    if as_json:
        return print_json({"lab": lab.id, "against": other[1], "diff": lines})
    for line in lines or ["no difference"]:
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[0], "")
        console.print(Text(line, style=colour))


@app.command(rich_help_panel=MORE)
def reset(name: LabName = None, as_json: AsJson = False) -> None:
    """Begin a lab anew; your file is kept under another name."""
    session = Session()
    (lab,) = session.labs_here([name] if name else None)
    kept = session.workspace.reset(lab)
    if as_json:
        return print_json(
            {"lab": lab.id, "file": str(session.workspace.file(lab)), "kept": str(kept) if kept else None}
        )
    console.print(f"{escape(_shown(session.workspace.file(lab)))} is the starter again")
    if kept:
        console.print(f"yours is kept as [bold]{escape(_shown(kept))}[/]")


@app.command(rich_help_panel=MORE)
def symptom(
    words: Annotated[
        list[str] | None, typer.Argument(help="An error message or a complaint; - reads standard input.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the labs that answer an error message or a complaint, in English or Chinese."""
    text = sys.stdin.read() if words in (None, [], ["-"]) else " ".join(words)
    found = symptoms.find(text, Session().catalog)
    if as_json:
        print_json(
            [{"lab": m.lab.id, "title": m.lab.title, "symptom": m.symptom, "score": round(m.score, 3)} for m in found]
        )
    elif not found:
        console.print("no lab answers that; try the last line of the error message, or fewer words")
    else:
        for match in found:
            console.print(
                f"[bold]{match.lab.id}[/]  {escape(match.lab.title)}  [dim]{escape(match.symptom)} ({match.score:.0%})[/]"
            )
        _next_step(f"breakfix start {found[0].lab.id}", "")
    raise typer.Exit(0 if found else 1)


@app.command(rich_help_panel=MORE)
def doctor(as_json: AsJson = False) -> None:
    """Say what this machine can run: versions, devices, isolation, and which labs."""
    from breakfix.doctor import examine

    report = examine(Session().catalog)
    if as_json:
        return print_json(report)
    for part, entries in report.items():
        console.print(f"[bold]{part}[/]")
        for key, value in entries.items():
            console.print(f"  {key:<22} {value}", markup=False)


# ------------------------------------------------------------------------------------------------------------------


def _next(session: Session) -> Lab:
    lab = session.workspace.next_lab(session.catalog)
    if lab is None:
        raise WorkspaceError("every lab has passed; name one to see it again")
    return lab


def _leave_if_lacking(lab: Lab, device: str, as_json: bool) -> None:
    if missing := lacking(lab, device):
        if as_json:
            print_json({"lab": lab.id, "state": missing[0], "detail": missing[1]})
        else:
            console.print(f"[yellow]{missing[0]}[/]: {escape(missing[1])}")
        raise typer.Exit(ENVIRONMENT)


def _may_spoil(session: Session, lab: Lab, yes: bool, what: str) -> None:
    """Before a pass, ask once, and record that it was seen."""
    note = session.workspace.note(lab)
    if session.workspace.passed(lab) or note.get("spoiled"):
        return
    if not yes and not (
        sys.stdin.isatty() and typer.confirm(f"{lab.id} has not passed yet. Show {what} all the same?")
    ):
        raise WorkspaceError(f"{lab.id} has not passed yet; --yes shows {what} all the same")
    note["spoiled"] = True
    session.workspace.save()


def _ask_predictions(session: Session, lab: Lab) -> None:
    """Before the first run, on a terminal: each prediction may be skipped with Enter."""
    note = session.workspace.note(lab)
    if "predictions" in note or not lab.predictions or not sys.stdin.isatty() or not console.is_terminal:
        return
    console.print("[bold]Before you run it[/]: what do you expect? A number, or Enter to skip.")
    note["predictions"] = [_ask(p) for p in lab.predictions]
    session.workspace.save()


def _ask(prediction: dict) -> str | None:
    console.print(f"\n{prediction['question']}", markup=False)
    for number, choice in enumerate(prediction["choices"], 1):
        console.print(f"  {number}  {choice}", markup=False)
    answer = console.input("> ").strip()
    chosen = int(answer) - 1 if answer.isdecimal() else -1
    return str(prediction["choices"][chosen]) if 0 <= chosen < len(prediction["choices"]) else None


def _show_predictions(session: Session, lab: Lab) -> None:
    """Once, after the first run: what was expected beside what was measured."""
    note = session.workspace.note(lab)
    if note.get("predictions_shown"):
        return
    for question, answer, right in session.predictions(lab):
        if right is not None:
            sign = "[green]✓[/]" if answer == right else "[yellow]≠[/]"
            console.print(
                f"{sign} {escape(question)} You said {escape(str(answer))}; measured: [bold]{escape(right)}[/]"
            )
            note["predictions_shown"] = True
    if note.get("predictions_shown"):
        session.workspace.save()


def _next_step(command: str, why: str) -> None:
    console.print(f"next: [bold cyan]{escape(command)}[/]  [dim]{escape(why)}[/]")


def _shown(path: Path) -> str:
    path, here = Path(path).resolve(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
