"""Further commands for whoever grades a class: who wrote alike, grading on many machines, graders for other places."""

from collections.abc import Iterator
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from breakfix.catalog import Catalog, Lab
from breakfix.cli import AsJson, app, print_json
from breakfix.cli.instructor import BOOK, INSTRUCTORS, Results, drawing, open_book, read_or_refuse
from breakfix.grading import alike, deploy, shards, statistics
from breakfix.grading.assignment import Assignment
from breakfix.grading.bundle import SPECIFICATION
from breakfix.grading.exports import Graded
from breakfix.grading.gradebook import Gradebook
from breakfix.grading.similarity import Candidate, Found, compare
from breakfix.grading.submissions import collect
from breakfix.render.terminal import console, errors

Html = Annotated[Path | None, typer.Option("--html", help="Write a page to this file.", dir_okay=False)]


@app.command(rich_help_panel=INSTRUCTORS)
def stats(
    results: Results,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Show how a class did: of each lab how many passed, which check fails most, and which mistakes are known.

    A failing file is compared with the wrong fixes that the lab's author has recorded: which one fails the same checks?
    The page has charts and names nobody.
    """
    catalog = Catalog.read()
    with open_book(results) as book:
        rows = [Graded(row, book.verdict(row.key)) for row in book.grades()]
    if html:
        plan = read_or_refuse(Assignment.read, results / SPECIFICATION, catalog)
        html.write_text(drawing("breakfix.grading.class_page").page(rows, plan.title, catalog), "utf-8")
    labs = statistics.of_class(rows, catalog)
    if as_json:
        return print_json({lab.lab: lab.to_json() for lab in labs})
    for lab in labs:
        _show_statistics(lab)
    if html:
        console.print(f"{html} has it with charts", style="dim", markup=False)


def _show_statistics(lab: statistics.LabStatistics) -> None:
    console.print(f"[bold]{lab.lab}[/]  " + ", ".join(f"{n} {state}" for state, n in lab.states.items()))
    for name, n in lab.failed_checks.items():
        console.print(f"    {n} of {lab.judged} fail {name}")
    for told, n in lab.like.items():
        who = [student for student, found in lab.like_by_student.items() if found.told == told]
        verb = "behaves" if n == 1 else "behave"
        console.print(f"    {n} {verb} like {told}: {', '.join(who)}", markup=False, soft_wrap=True)


@app.command(rich_help_panel=INSTRUCTORS)
def similar(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder that `grade` wrote, or a folder of submissions.", exists=True, file_okay=False),
    ],
    lab: Annotated[list[str] | None, typer.Option(help="Only this lab; repeatable.")] = None,
    show: Annotated[int, typer.Option(min=0, help="How many pairs of each lab to show side by side.")] = 1,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Rank the files that have more in common than the lab gave everybody: a list of questions, not of answers.

    Names, comments, layout and order do not hide what is alike. The published solutions are among the candidates.
    """
    catalog = Catalog.read()
    labs = [catalog[name] for name in lab] if lab else list(catalog)
    found = list(_compared(folder, labs, quiet=as_json))
    if not found:
        raise typer.BadParameter(f"{folder} has no file of {', '.join(one.id for one in labs)}")
    if html:
        html.write_text(alike.page(found), "utf-8")
    if as_json:
        return print_json([_told(one) for one in found])
    console.print(alike.terminal(found, show))
    for note in (note for one in found for note in one.notes):
        console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)
    if html:
        console.print(f"{html} has them all", style="dim", markup=False)


def _compared(folder: Path, labs: list[Lab], quiet: bool) -> Iterator[Found]:
    files = _graded(folder) if (folder / BOOK).is_file() else _handed_in(folder, labs)
    chosen = [lab for lab in labs if files.get(lab.id)]
    hidden = quiet or not errors.is_terminal
    for lab in track(chosen, "comparing", console=errors, transient=True, disable=hidden):
        yield compare(lab, files[lab.id])


def _graded(results: Path) -> dict[str, list[Candidate]]:
    """By lab, the files that count in a gradebook."""
    files: dict[str, list[Candidate]] = {}
    with open_book(results) as book:
        for grade in book.grades():
            if source := book.source(grade.key):
                files.setdefault(grade.lab, []).append(Candidate(grade.student, source, where=grade.place))
    return files


def _handed_in(folder: Path, labs: list[Lab]) -> dict[str, list[Candidate]]:
    files: dict[str, list[Candidate]] = {}
    for handin in collect(folder, labs).handins:
        if handin.source:
            files.setdefault(handin.lab, []).append(Candidate(handin.student, handin.source, where=handin.where))
    return files


def _told(found: Found) -> dict:
    return {
        "lab": found.lab, "compared": found.compared, "pairs": [pair.to_json() for pair in found.pairs],
        "groups": found.groups(), "notes": found.notes,
    }  # fmt: skip


@app.command(rich_help_panel=INSTRUCTORS)
def merge(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders that `grade --shard` wrote.", exists=True, file_okay=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder.", file_okay=False)],
    as_json: AsJson = False,
) -> None:
    """Join the gradebooks of a class that was graded in parts. Exit code 1 if something is missing or contradicts.

    What there is, is joined in any case; what is to be mended is said, and a later merge has it.
    """
    if out.exists() and any(out.iterdir()):
        raise typer.BadParameter(f"{out} is not empty; name another folder")
    _demand_one_assignment(folders)
    with ExitStack() as stack:
        books = [stack.enter_context(open_book(folder)) for folder in folders]
        parts = [_read_part(folder, book) for folder, book in zip(folders, books, strict=True)]
        target = stack.enter_context(open_book(out, folders[0] / SPECIFICATION, create=True))
        merged = shards.merge(parts, books, target)
    print_json(merged.to_json()) if as_json else _show_merged(merged, out)
    raise typer.Exit(1 if merged.problems else 0)


def _demand_one_assignment(folders: list[Path]) -> None:
    for folder in folders:
        if not (folder / SPECIFICATION).is_file():
            raise typer.BadParameter(f"{folder} has no {SPECIFICATION}; name folders that `grade --shard` wrote")
    texts = {(folder / SPECIFICATION).read_bytes() for folder in folders}
    if len(texts) > 1:
        raise typer.BadParameter(f"the folders were graded by different assignments: compare their {SPECIFICATION}")


def _read_part(folder: Path, book: Gradebook) -> shards.Part:
    try:
        return shards.Part.read(folder, book)
    except shards.BadShard as error:
        raise typer.BadParameter(str(error)) from None


def _show_merged(merged: shards.Merged, out: Path) -> None:
    for problem in merged.problems:
        console.print(f"✗ {problem}", style="red", markup=False, soft_wrap=True)
    for note in merged.notes:
        console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)
    whole = "" if merged.problems else ", the whole class"
    console.print(f"{merged.grades} grades in {out / BOOK}{whole}", markup=False)


class Where(StrEnum):
    """Where an autograder is to run."""

    gradescope, github, slurm, kubernetes = "gradescope", "github", "slurm", "kubernetes"


FILES = {  # by place: the templates, and the files that they become
    Where.github: {
        "check.yml": "students/.github/workflows/check.yml",
        "grade.yml": "instructor/.github/workflows/grade.yml",
    },
    Where.slurm: {"slurm.sh": "grade.sh"},
    Where.kubernetes: {"kubernetes.yaml": "grade.yaml"},
}


@app.command(rich_help_panel=INSTRUCTORS)
def autograder(
    place: Annotated[Where, typer.Option("--as", help="Where it is to run.")],
    assignment: Annotated[Path, typer.Option(help="Your assignment.toml, with the key.", exists=True, dir_okay=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.", file_okay=False)] = Path(),
    parts: Annotated[int, typer.Option(min=1, max=1000, help="How many machines share the work.")] = 4,
    workers: Annotated[int, typer.Option("--workers", "-j", min=1, help="Files judged at a time on each.")] = 2,
    submissions: Annotated[str, typer.Option(help="The folder of submissions, as it is called there.")] = "submissions",
    roster: Annotated[str | None, typer.Option(help="The roster, as it is called there.")] = None,
    results: Annotated[str, typer.Option(help="Where the parts go.")] = "results",
    wheel: Annotated[
        list[Path] | None, typer.Option(help="A wheel to put into the zip; repeatable.", exists=True, dir_okay=False)
    ] = None,
    trusted: Annotated[
        bool, typer.Option("--i-trust-these-submissions", help="Run them without isolation, where there is none.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a grader for another place: a Gradescope autograder, GitHub workflows, a Slurm array, a Kubernetes job.

    What it writes holds your key or paths, never a student's file. Nothing is sent anywhere.
    """
    catalog = Catalog.read()
    plan = read_or_refuse(Assignment.read, assignment, catalog)
    if not plan.key:
        raise typer.BadParameter(f"{assignment} has no key: it is the students' copy; give your own")
    labs = [catalog[name] for name in plan.points]
    named = [submissions, str(assignment), results, roster or ""]
    if not all(name.isprintable() for name in named):
        raise typer.BadParameter("a path has a character that cannot be seen; rename it")
    there = deploy.Place(submissions, str(assignment), results, roster, parts, workers, trusted)
    written = _write_grader(place, plan, labs, there, wheel or [], out)
    if as_json:
        return print_json(list(map(str, written)))
    for path in written:
        console.print(str(path), markup=False, soft_wrap=True)
    console.print(f"next: {NEXT[place]}", style="bold cyan", markup=False, soft_wrap=True)


NEXT = {
    Where.gradescope: "upload the zip under Configure Autograder, then try it there with your own solution",
    Where.github: "put students/ into what your students get, and instructor/ into a private repository of yours",
    Where.slurm: "sbatch grade.sh, and when all parts have ended, breakfix merge",
    Where.kubernetes: "put your image and your volume in, then kubectl apply -f grade.yaml",
}


def _write_grader(
    place: Where, plan: Assignment, labs: list[Lab], there: deploy.Place, wheels: list[Path], out: Path
) -> list[Path]:
    paths = [out / name for name in FILES.get(place, {"": "autograder.zip"}).values()]
    for path in paths:
        if path.exists():
            raise typer.BadParameter(f"{path} exists; name another folder with --out")
        path.parent.mkdir(parents=True, exist_ok=True)
    if place is Where.gradescope:
        deploy.gradescope(plan, labs, there, wheels, paths[0])
        return paths
    for template, path in zip(FILES[place], paths, strict=True):
        path.write_text(deploy.fill(template, there.words(labs)), "utf-8", newline="\n")
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    return paths
