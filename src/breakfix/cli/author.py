"""Commands for whoever writes labs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from breakfix.cache import VerdictCache
from breakfix.catalog import BadLab, Catalog, Lab
from breakfix.cli import AsJson, Device, app, print_json
from breakfix.render.terminal import console, errors
from breakfix.verify import Report, verify
from breakfix.zygote import Engine

AUTHORS = "For authors"


@app.command("verify", rich_help_panel=AUTHORS)
def verify_command(
    names: Annotated[list[str] | None, typer.Argument(help="Labs, as in lab08 or 8 (default: all).")] = None,
    root: Annotated[list[Path] | None, typer.Option(help="A root with labs of your own; repeatable.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to judge every file on: 1, 2, ...")] = 1,
    device: Device = "cpu",
    fresh: Annotated[bool, typer.Option(help="Judge again what has not changed since the last time.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify that labs keep every rule: files, variants, bounds, commands.

    The starter must fail exactly what it declares, the solution and every right variant must pass, every wrong one must
    fail exactly what it names, and every check must be failed by something.
    """
    catalog = Catalog.read(*(root or []))
    labs, bad = _chosen(catalog, names)
    cache = None if fresh else VerdictCache()
    with Engine() as engine, _progress(as_json) as progress:
        reports = [_verified(lab, catalog, engine, range(1, seeds + 1), cache, device, progress) for lab in labs]
    if as_json:
        print_json(
            [*map(_report_json, reports), *({"lab": name, "holds": False, "problems": what} for name, what in bad)]
        )
    else:
        _show(reports, bad)
    raise typer.Exit(0 if all(r.holds for r in reports) and not bad else 1)


def _chosen(catalog: Catalog, names: list[str] | None) -> tuple[list[Lab], list[tuple[str, list[str]]]]:
    """The labs that were named, and the faults of those that cannot even be read."""
    if not names:
        return list(catalog), [(name, list(map(str, error.problems))) for name, error in catalog.bad.items()]
    labs, bad = [], []
    for name in names:
        try:
            labs.append(catalog[name])
        except BadLab as error:
            bad.append((name, list(map(str, error.problems))))
    return labs, bad


def _progress(hidden: bool) -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, console=errors, transient=True, disable=hidden or not errors.is_terminal)


def _verified(lab: Lab, catalog: Catalog, engine, seeds, cache, device: str, progress: Progress) -> Report:
    task = progress.add_task(lab.id, total=None)
    report = verify(
        lab, catalog, engine, seeds, cache, device,
        on_step=lambda done, total, what: progress.update(task, completed=done, total=total, description=f"{lab.id} {what}"),
    )  # fmt: skip
    progress.remove_task(task)
    return report


def _show(reports: list[Report], bad: list[tuple[str, list[str]]]) -> None:
    for report in reports:
        used = [v.outside for _, v in report.verdicts if "cpu_seconds" in v.outside]
        cost = (
            f"; at most {max(o['cpu_seconds'] for o in used):.1f} CPU s, {max(o['maxrss_mib'] for o in used):.0f} MiB"
            if used
            else ""
        )
        sign = "[green]✓ holds[/]" if report.holds else "[bold red]✗ does not hold[/]"
        console.print(f"{sign}  {report.lab}: {len(report.verdicts)} verdicts{cost}")
        for problem in report.problems:
            console.print(f"    {problem}", style="red", markup=False)
    for name, problems in bad:
        console.print(f"[bold red]✗ does not hold[/]  {name}")
        for problem in problems:
            console.print(f"    {problem}", style="red", markup=False)


def _report_json(report: Report) -> dict:
    verdicts = [{"file": role} | v.to_json() for role, v in report.verdicts]
    return {"lab": report.lab, "holds": report.holds, "problems": list(map(str, report.problems)), "verdicts": verdicts}
