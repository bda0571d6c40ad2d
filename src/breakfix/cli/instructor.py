"""Commands for whoever hands out labs and grades what comes back."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from breakfix import sandbox
from breakfix.catalog import Catalog
from breakfix.cli import AsJson, app, print_json
from breakfix.grading import bundle, exports, feedback
from breakfix.grading.assignment import Assignment, BadAssignment
from breakfix.grading.cohort import SOLUTION, STARTER, Cohort, SelfTest, minutes, own_key
from breakfix.grading.exports import Graded
from breakfix.grading.gradebook import BadGradebook, Grade, Gradebook
from breakfix.grading.shards import BadShard, Shard
from breakfix.grading.statistics import likeness
from breakfix.grading.submissions import BadRoster, Handin, collect, read_roster
from breakfix.render import terminal
from breakfix.render.terminal import console, errors
from breakfix.verdict import ENVIRONMENT, PASSED, Verdict
from breakfix.zygote import Engine

INSTRUCTORS = "For instructors"
BOOK = "gradebook.sqlite"
OWN_FILES = (SOLUTION, STARTER)
Results = Annotated[Path, typer.Argument(help="The folder that `grade` wrote.", exists=True, file_okay=False)]


@app.command(rich_help_panel=INSTRUCTORS)
def assign(
    names: Annotated[list[str], typer.Argument(help="Labs, as in lab08 or 8.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder.", file_okay=False)],
    title: Annotated[str, typer.Option(help="What it is called.")] = "Assignment",
    due: Annotated[str | None, typer.Option(help="With a time zone, as in 2026-12-14T23:59:00+01:00.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make an assignment: what students get, as a folder and a zip, and your assignment.toml with the key.

    The key decides the inputs of every graded file: it stays with you. Points and a late policy may be edited there.
    """
    catalog = Catalog.read()
    labs = list({lab.id: lab for lab in map(catalog.__getitem__, names)}.values())
    assignment = Assignment.of(labs, title, _due(due))
    try:
        written = bundle.write(assignment, labs, out)
    except bundle.InTheWay as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        return print_json({"labs": [lab.id for lab in labs], "files": list(map(str, written))})
    for path, what in zip(written, ("yours: keep it", "a template repository", "the same as a zip"), strict=True):
        console.print(f"{escape(str(path))}  [dim]{what}[/]", soft_wrap=True)
    console.print(terminal.step(f"breakfix grade SUBMISSIONS --assignment {written[0]}", "when they are in"))


def _due(text: str | None) -> datetime | None:
    try:
        due = datetime.fromisoformat(text) if text else None
    except ValueError:
        due = datetime.min
    if due and due.tzinfo is None:
        raise typer.BadParameter(f"due is {text!r}; write it with a time zone, as in 2026-12-14T23:59:00+01:00")
    return due


class Where(StrEnum):
    """Where `grade` judges."""

    local, ray = "local", "ray"


@app.command(rich_help_panel=INSTRUCTORS)
def grade(
    submissions: Annotated[
        Path | None, typer.Argument(help="A folder with a folder or a zip per student.", exists=True, file_okay=False)
    ] = None,
    assignment: Annotated[
        Path | None, typer.Option(help="The assignment.toml that `assign` wrote.", exists=True, dir_okay=False)
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="A CSV with a column student; due is an extension.", exists=True, dir_okay=False)
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The gradebook's folder.", file_okay=False)] = Path(
        "results"
    ),
    workers: Annotated[int | None, typer.Option("--workers", "-j", min=1, help="Files judged at a time.")] = None,
    again: Annotated[
        list[str] | None, typer.Option(help="Grade anew: a student, a lab, or all; repeatable. The old grades stay.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Only part I of N, on one of N machines; `merge` joins them.")
    ] = None,
    where: Annotated[
        Where, typer.Option("--engine", help="This machine, or the Ray cluster of RAY_ADDRESS.")
    ] = Where.local,
    self_test: Annotated[bool, typer.Option("--self-test", help="Judge the labs' own files, and stop there.")] = False,
    explain: Annotated[
        tuple[str, str] | None, typer.Option(metavar="STUDENT LAB", help="Show how one grade came about, and stop.")
    ] = None,
    trusted: Annotated[
        bool, typer.Option("--i-trust-these-submissions", help="Run them without isolation, as yourself.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Grade a folder of submissions. Stop it at any moment: what has a grade keeps it, the next run goes on.

    First the labs' own files are judged: a solution that fails here would be the machine's fault, not a student's.
    """
    if explain:
        return _explain(out, *explain, as_json)
    if not submissions or not assignment:
        raise typer.BadParameter("name the folder of submissions, and the assignment: --assignment FILE")
    catalog = Catalog.read()
    plan, students = (
        read_or_refuse(Assignment.read, assignment, catalog),
        read_or_refuse(read_roster, roster) if roster else None,
    )
    if not plan.key:
        raise typer.BadParameter(f"{assignment} has no key: it is the students' copy; give your own")
    isolation = _isolation(trusted)
    collected = collect(submissions, [catalog[name] for name in plan.points], students)
    handins = _part(shard, collected.handins, out) if shard else collected.handins
    with _engine(where) as engine, open_book(out, assignment, create=True) as book:
        workers = workers or getattr(engine, "workers", os.cpu_count() or 1)
        cohort = Cohort(plan, catalog, engine, book, students, isolation)
        tests = _self_tested(cohort, handins, workers, as_json)
        if self_test:
            return print_json([_told(test) for test in tests]) if as_json else None
        graded = _graded(cohort, handins, _chosen(again or []), workers, as_json)
        rows = list(book.grades())
    if as_json:
        return print_json({"graded": graded, "notes": collected.notes, "grades": [asdict(r) for r in rows]})
    for note in collected.notes:
        console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)
    _summary(rows, graded, out)


def _engine(where: Where):
    """What judges; the end of the command where Ray is asked for and not installed."""
    if where == Where.local:
        return Engine()
    return installed("breakfix.grading.ray_engine", "ray", "breakfix[grade]").RayEngine()


def _part(text: str, handins: list[Handin], out: Path) -> list[Handin]:
    """The hand-ins of one part of the class; which one it is, is noted beside its gradebook."""
    try:
        shard = Shard.parse(text)
        shard.demand_place(out)
    except BadShard as error:
        raise typer.BadParameter(str(error)) from None
    out.mkdir(parents=True, exist_ok=True)
    shard.write(out, handins)
    return [handin for handin in handins if shard.takes(handin)]


def _isolation(trusted: bool) -> str:
    """The level that submissions are run at; the end of the command where there is none and they are not trusted."""
    level = sandbox.NONE if trusted else sandbox.best_level()
    if level == sandbox.NONE and not trusted:
        errors.print("This machine has no isolation for files of strangers, so they are not run.", style="bold red")
        errors.print(
            "It takes Linux and permission to make namespaces: a virtual machine, or a container started with "
            "--security-opt seccomp=unconfined --cap-add SYS_ADMIN.\n"
            "If you trust every one of them as you trust yourself: --i-trust-these-submissions",
            soft_wrap=True,
        )
        raise typer.Exit(ENVIRONMENT)
    return level


def read_or_refuse(reader: Callable, *arguments):
    """What `reader` gives; a file that is wrong is a wrong argument."""
    try:
        return reader(*arguments)
    except (BadAssignment, BadRoster) as error:
        raise typer.BadParameter(str(error)) from None


def _chosen(again: list[str]) -> Callable[[Handin], bool]:
    return lambda handin: "all" in again or handin.student in again or handin.lab in again


@contextmanager
def open_book(folder: Path, assignment: Path | None = None, create: bool = False) -> Iterator[Gradebook]:
    """The gradebook in `folder`, beside a copy of its assignment."""
    kept = folder / bundle.SPECIFICATION
    if create and assignment:
        folder.mkdir(parents=True, exist_ok=True)
        if kept.exists() and kept.read_bytes() != assignment.read_bytes() and (folder / BOOK).exists():
            _same_key(kept, assignment)
        kept.write_bytes(assignment.read_bytes())
    elif not (folder / BOOK).is_file():
        raise typer.BadParameter(f"{folder} has no {BOOK}; name the folder that `grade` wrote")
    try:
        with Gradebook(folder / BOOK) as book:
            yield book
    except BadGradebook as error:
        raise typer.BadParameter(str(error)) from None


def _same_key(kept: Path, given: Path) -> None:
    """Points and dates may change; another key is another assignment, and must not mix with this one's grades."""
    catalog = Catalog.read()
    if read_or_refuse(Assignment.read, kept, catalog).key != read_or_refuse(Assignment.read, given, catalog).key:
        raise typer.BadParameter(f"{kept.parent} holds grades of another assignment; name another folder with --out")


def _self_tested(cohort: Cohort, handins: list[Handin], workers: int, quiet: bool) -> list[SelfTest]:
    """Judge the labs' own files; the end of the command where one is not judged as it must be."""
    tests: list[SelfTest] = []
    for test in cohort.self_test():
        tests.append(test)
        if not quiet:
            sign = "[green]✓[/]" if test.holds else "[red]✗[/]"
            console.print(f"{sign} {test.lab}: solution {test.solution.state}, starter {test.starter.state}")
        if not test.holds:
            bad = test.solution if not test.solution.passed else test.starter
            errors.print(f"{test.lab} cannot be graded on this machine: {bad.detail or bad.state}", markup=False)
            raise typer.Exit(ENVIRONMENT)
    files = Counter(handin.lab for handin in handins if handin.source is not None)
    if not quiet:
        estimate = minutes(tests, files, workers)
        console.print(f"{files.total()} files, {workers} at a time: about {max(1, round(estimate))} min", style="dim")
    return tests


def _told(test: SelfTest) -> dict:
    return {"lab": test.lab, "solution": test.solution.state, "starter": test.starter.state, "seconds": test.seconds}


def _graded(cohort: Cohort, handins: list[Handin], again: Callable, workers: int, quiet: bool) -> int:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    hidden = quiet or not errors.is_terminal
    done = 0
    with Progress(*columns, console=errors, transient=True, disable=hidden) as progress:
        task = progress.add_task("grading", total=len(handins))
        for done, one in enumerate(cohort.grade(handins, again, workers), 1):
            progress.update(task, completed=done, description=f"{one.student} {one.lab} {one.state}")
    return done


def _summary(rows: list[Grade], graded: int, out: Path) -> None:
    table = Table("student", "lab", "state", "points", "", box=None)
    for row in rows:
        note = row.trouble or (f"late: {row.kept_percent} %" if row.kept_percent < 100 else "")
        sign = "✓" if row.state == PASSED else "✗"
        table.add_row(row.student, row.lab, f"{sign} {row.state}", f"{row.points} of {row.most}", escape(note))
    console.print(table)
    console.print(f"{graded} graded now, {len(rows)} in {out / BOOK}", style="dim")
    console.print(terminal.step(f"breakfix export {out} --as feedback", "a page for each student"))


def _explain(results: Path, student: str, lab: str, as_json: bool) -> None:
    """How a grade came about: every figure, the seed, the history, and the command that replays it."""
    catalog = Catalog.read()
    with open_book(results) as book:
        history = book.history(student, catalog[lab].id)
        if not history:
            raise typer.BadParameter(f"{student} has no grade for {catalog[lab].id} in {results}")
        verdict = book.verdict(history[-1].key)
        source = book.source(history[-1].key)
    known = likeness(verdict, catalog[lab])
    if as_json:
        told = verdict.to_json() if verdict else None
        like = list(known.names) if known else []
        return print_json({"history": [asdict(h) for h in history], "verdict": told, "like": like})
    for row in history:
        place = f"{row.place}  " if row.place else ""
        console.print(f"{row.graded}  {row.state}  {row.points} of {row.most}  {place}{row.trouble}", markup=False)
    if verdict:
        kept = results / "replay" / f"{history[-1].key}" / catalog[lab].editable
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(source)
        console.print(terminal.verdict(verdict, catalog[lab]))
        if known:
            console.print(f"It behaves like {known.told}.", markup=False, soft_wrap=True)
        console.print(terminal.step(f"breakfix check {catalog[lab].id} --file {kept} --seed {verdict.seed}", "again"))


class Format(StrEnum):
    """What `export` writes."""

    csv, json, junit, gradescope, classroom50, canvas, feedback, pages = (
        "csv", "json", "junit", "gradescope", "classroom50", "canvas", "feedback", "feedback-html",
    )  # fmt: skip


WHOLE = {Format.csv: exports.plain_csv, Format.json: exports.plain_json, Format.junit: exports.junit}
ENDINGS = {Format.csv: "csv", Format.json: "json", Format.junit: "xml", Format.canvas: "csv"}
EACH = {
    Format.gradescope: (exports.gradescope, "results.json"),
    Format.classroom50: (exports.classroom50, "result.json"),
}


@app.command(rich_help_panel=INSTRUCTORS)
def export(
    results: Results,
    form: Annotated[Format, typer.Option("--as", help="The format.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to (default: inside RESULTS).")] = None,
    canvas: Annotated[
        Path | None, typer.Option(help="The CSV exported from Canvas, to fill in.", exists=True, dir_okay=False)
    ] = None,
    column: Annotated[str | None, typer.Option(help="Canvas's column (default: the assignment's title).")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the grades for another program, or a page of feedback for each student."""
    catalog = Catalog.read()
    plan = read_or_refuse(Assignment.read, results / bundle.SPECIFICATION, catalog)
    with open_book(results) as book:
        rows = [Graded(row, book.verdict(row.key)) for row in book.grades()]
        own = {own_key(lab, what): book.verdict(own_key(lab, what)) for lab in plan.points for what in OWN_FILES}
    if form is Format.canvas:
        texts = {f"canvas.{ENDINGS[form]}": _canvas(canvas, rows, column or plan.title)}
    elif form in WHOLE:
        texts = {f"grades.{ENDINGS[form]}": WHOLE[form](rows)}
    else:
        texts = {path: text for one in _by_student(rows) for path, text in _of_one(form, one, plan, catalog, own)}
    written = _write(out or results, texts)
    print_json(list(map(str, written))) if as_json else console.print(f"{len(written)} written, in {out or results}")


def _canvas(exported: Path | None, rows: list[Graded], column: str) -> str:
    if exported is None:
        raise typer.BadParameter("give the file that you exported from Canvas: --canvas FILE")
    try:
        return exports.canvas(exported.read_text("utf-8-sig"), rows, column)
    except exports.BadCanvas as error:
        raise typer.BadParameter(str(error)) from None


def _by_student(rows: list[Graded]) -> list[list[Graded]]:
    found: dict[str, list[Graded]] = {}
    for row in rows:
        found.setdefault(row.grade.student, []).append(row)
    return list(found.values())


def _of_one(
    form: Format, rows: list[Graded], plan: Assignment, catalog: Catalog, own: dict[str, Verdict | None]
) -> Iterator[tuple[str, str]]:
    folder = f"{form}/{_file_name(rows[0].grade.student)}"
    if form is Format.pages:
        page = drawing("breakfix.grading.feedback_page").page
        yield f"{folder}.html", page(rows, plan.title, catalog, own.get)
    elif form is Format.feedback:
        yield f"{folder}.md", feedback.page(rows, plan.title, catalog)
    else:
        writer, name = EACH[form]
        yield f"{folder}/{name}", writer(rows)


def _file_name(student: str) -> str:
    """A roster may hold anything: what is no plain name gets its bytes spelled out."""
    return "".join(c if c.isalnum() or c in "-_." else f"%{ord(c):x}" for c in student).lstrip(".") or "%"


def _write(folder: Path, texts: dict[str, str]) -> list[Path]:
    written = []
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", newline="")
        written.append(path)
    return written


def drawing(module: str) -> ModuleType:
    """A module that draws."""
    return installed(module, "matplotlib", "breakfix[plots]")


def installed(module: str, package: str, extra: str) -> ModuleType:
    """A module that wants a further package; the end of the command where that is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        errors.print(f"{package} is not installed: python -m pip install '{extra}'", markup=False)
        raise typer.Exit(ENVIRONMENT) from None
