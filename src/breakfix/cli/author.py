"""Commands for whoever writes labs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from breakfix.cache import VerdictCache, user_cache
from breakfix.catalog import ROOTS_VARIABLE, BadLab, Catalog, Lab, default_roots
from breakfix.cli import AsJson, Device, app, print_json
from breakfix.render.terminal import console, errors
from breakfix.rules import parts_to_fill_in
from breakfix.scaffold import ScaffoldError, new_lab
from breakfix.verdict import ENVIRONMENT
from breakfix.verify import Report, verify
from breakfix.zygote import Engine

AUTHORS = "For authors"


@app.command("new", rich_help_panel=AUTHORS)
def new_command(
    name: Annotated[str, typer.Argument(help="What a person sees, in lower case, as in loss_is_nan_sometimes.")],
    root: Annotated[
        Path, typer.Option(help="The folder that gets labs/, solutions/ and tests/labs/.", file_okay=False)
    ] = Path(),
    number: Annotated[int | None, typer.Option(help="The lab's number (default: the next free one).")] = None,
    script: Annotated[
        Path | None, typer.Option("--from", help="Make a lab of this script instead of an example.", dir_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a new lab: a small example that runs at once, each part to replace marked TODO. Never overwrites."""
    try:
        lab = new_lab(name, root, number, script)
    except ScaffoldError as error:
        raise typer.BadParameter(str(error)) from None
    folders = [lab.path, lab.solution_path, lab.tests_path]
    parts = parts_to_fill_in(lab)
    if as_json:
        files = sorted(str(p) for folder in folders for p in folder.rglob("*") if p.is_file())
        return print_json({"lab": lab.id, "root": str(lab.root), "files": files, "to_fill_in": list(map(str, parts))})
    for folder in folders:
        console.print(f"[bold]{lab.id}[/]  ", end="")
        console.print(str(folder), markup=False, soft_wrap=True)
    runs = "its checks measure nothing yet" if script else "it runs as it is"
    console.print(f"{len(parts)} parts to fill in, each marked TODO; {runs}")
    _say_how_to_use(lab)


def _say_how_to_use(lab: Lab) -> None:
    """How to verify the lab, and how the other commands find a root that they do not know yet."""
    known = lab.root in [root.resolve() for root in default_roots()]
    option = "" if known else f" --root {lab.root}"
    console.print(f"next: breakfix verify {lab.id}{option}", style="bold cyan", markup=False, soft_wrap=True)
    if not known:
        told = f"{ROOTS_VARIABLE}={lab.root} in the environment lets start, check and list find it"
        console.print(told, style="dim", markup=False, soft_wrap=True)


@app.command("verify", rich_help_panel=AUTHORS)
def verify_command(
    names: Annotated[list[str] | None, typer.Argument(help="Labs, as in lab08 or 8 (default: all).")] = None,
    root: Annotated[
        list[Path] | None, typer.Option(help="Labs of this root instead; repeatable.", exists=True, file_okay=False)
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to judge every file on: 1, 2, ...")] = 1,
    device: Device = "cpu",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Judge again what has not changed since the last time.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify that labs keep every rule: files, variants, bounds, commands.

    The starter must fail exactly what it declares, the solution and every right variant must pass, every wrong one must
    fail exactly what it names, and every check must be failed by something.
    """
    catalog = _catalog(root or [])
    labs, bad = _chosen(catalog, names)
    how = {
        "seeds": range(1, seeds + 1),
        "cache": VerdictCache(user_cache() / "verified"),
        "device": device,
        "fresh": fresh,
    }
    with Engine() as engine, progress_of_labs(as_json) as progress:
        reports = [_verified(lab, catalog, engine, progress, how) for lab in labs]
    reports += [Report(name, error.problems) for name, error in bad.items()]
    print_json(list(map(_report_json, reports))) if as_json else _show(reports)
    raise typer.Exit(max(map(_exit_code, reports)))


def _catalog(roots: list[Path]) -> Catalog:
    """The labs of `roots`, or of the project and BREAKFIX_ROOTS; nothing to verify is a mistake, not a success."""
    try:
        catalog = Catalog.read(*roots)
    except BadLab as error:
        raise typer.BadParameter(str(error)) from None
    if not catalog.labs and not catalog.bad:
        raise typer.BadParameter(f"there is no lab in {', '.join(map(str, roots or default_roots()))}")
    return catalog


def _chosen(catalog: Catalog, names: list[str] | None) -> tuple[list[Lab], dict[str, BadLab]]:
    """The labs that were named, and the faults of those that cannot even be read."""
    if not names:
        return list(catalog), catalog.bad
    labs, bad = [], {}
    for name in names:
        try:
            labs.append(catalog[name])
        except BadLab as error:
            bad[name] = error
    return labs, bad


def _exit_code(report: Report) -> int:
    return 1 if report.problems else ENVIRONMENT if report.lacks else 0


def progress_of_labs(hidden: bool) -> Progress:
    """A bar on the error stream; none where nobody would see it."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, console=errors, transient=True, disable=hidden or not errors.is_terminal)


def _verified(lab: Lab, catalog: Catalog, engine: Engine, progress: Progress, how: dict) -> Report:
    task = progress.add_task(lab.id, total=None)

    def follow(done: int, total: int, what: str) -> None:
        progress.update(task, completed=done, total=total, description=f"{lab.id} {what}")

    report = verify(lab, catalog, engine, **how, on_step=follow)
    progress.remove_task(task)
    return report


def _show(reports: list[Report]) -> None:
    for report in reports:
        console.print(f"{_sign(report)}  {report.lab}: {len(report.verdicts)} verdicts{_cost(report)}")
        for line in [*map(str, report.problems), *filter(None, [report.lacks])]:
            style = "red" if report.problems else "yellow"
            console.print(f"    {line}", style=style, markup=False, soft_wrap=True)


def _sign(report: Report) -> str:
    if report.problems:
        return "[bold red]✗ does not hold[/]"
    return "[yellow]? not verified here[/]" if report.lacks else "[green]✓ holds[/]"


def _cost(report: Report) -> str:
    used = [v.outside for _, v in report.verdicts if "cpu_seconds" in v.outside]
    if not used:
        return ""
    return f"; at most {max(o['cpu_seconds'] for o in used):.1f} CPU s, {max(o['maxrss_mib'] for o in used):.0f} MiB"


def _report_json(report: Report) -> dict:
    return {
        "lab": report.lab,
        "holds": report.holds,
        "lacks": report.lacks,
        "problems": list(map(str, report.problems)),
        "verdicts": [{"file": role} | v.to_json() for role, v in report.verdicts],
    }
