"""Records of what labs measure on a device, to lay beside the CPU's."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from breakfix.catalog import Catalog, Lab
from breakfix.cli import AsJson, Device, app, print_json
from breakfix.cli.author import progress_of_labs
from breakfix.records import Run, record
from breakfix.render.terminal import console, number
from breakfix.verdict import ENVIRONMENT
from breakfix.zygote import Engine


@app.command("evidence", rich_help_panel="For authors")
def evidence_command(
    names: Annotated[list[str] | None, typer.Argument(help="Labs, as in lab08 or 8 (default: all).")] = None,
    device: Device = "cuda",
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the records.", file_okay=False)] = Path(
        "evidence"
    ),
    minutes: Annotated[float, typer.Option(min=0, help="Begin no further lab after so many minutes.")] = 9,
    as_json: AsJson = False,
) -> None:
    """Record what every lab measures on a device, broken and fixed, and compare with the CPU.

    One small JSON file per lab, with card, driver and versions. Labs that have a record in the folder already are left
    out, so the command can be stopped and started again. A record copied to records/ is shown by the site.
    """
    catalog = Catalog.read()
    labs = [catalog[name] for name in names] if names else list(catalog)
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * minutes
    told, late = [], []
    with Engine() as engine, progress_of_labs(as_json) as progress:
        task = progress.add_task("", total=len(labs))
        for lab in labs:
            progress.update(task, description=lab.id)
            if time.monotonic() < deadline:
                told.append(_recorded(lab, engine, device, out))
            else:
                late.append(lab.id)
            progress.advance(task)
    if as_json:
        print_json({"records": list(map(_json, told)), "not begun": late})
    else:
        _show(told, late, out)
    ran = [run for run in told if run.ran]
    good = ran and not late and all(run.fixed.passed and not run.broken.passed for run in ran)
    raise typer.Exit(0 if good else 1 if ran else ENVIRONMENT)


def _recorded(lab: Lab, engine: Engine, device: str, out: Path) -> Run:
    """The record of `lab`, from the folder if it is there; a lab that cannot run here leaves none."""
    path = out / f"{lab.id}.{device.partition(':')[0]}.json"
    if path.exists():
        return Run.from_json(path.read_text("utf-8"))
    run = record(lab, engine, device)
    if run.ran:
        partial = path.with_suffix(".partial")
        partial.write_text(run.to_json() + "\n", "utf-8")
        partial.replace(path)
    return run


def _json(run: Run) -> dict:
    return {
        "lab": run.lab,
        "device": run.device_name,
        "broken": run.broken.state,
        "fixed": run.fixed.state,
        "differences": [asdict(d) | {"cpu": str(d.cpu), "other": str(d.other)} for d in run.differences],
    }


def _show(told: list[Run], late: list[str], out: Path) -> None:
    table = Table("lab", "device", "broken", "fixed", "beside the CPU", box=None, pad_edge=False, header_style="dim")
    for run in told:
        beside = f"{len(run.differences)} figures differ" if run.ran and run.device != "cpu" else "-"
        table.add_row(run.lab, run.device_name or "-", run.broken.state, run.fixed.state, beside)
    console.print(table)
    for run in told:
        for d in run.differences:
            console.print(Text(f"{run.lab} {d.side}: {d.what}: CPU {number(d.cpu)}, here {number(d.other)}", "dim"))
    if late:
        console.print(f"not begun, as the time was over: {', '.join(late)}; the same command goes on")
    if any(run.ran for run in told):
        console.print(f"records are in {out}", markup=False)
