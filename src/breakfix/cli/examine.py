"""The command that examines somebody's own script."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from breakfix.cli import AsJson, app, print_json
from breakfix.verdict import USAGE

ENVIRONMENT = dict(os.environ)  # as it was given, before the command line sets anything for itself


@app.command(
    rich_help_panel="Anybody",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def examine(
    command: Annotated[list[str], typer.Argument(help="The command, as in -- python train.py --epochs 3")],
    silence: Annotated[list[str] | None, typer.Option("--silence", help="A finding that is intended, by name.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with a timeline.", dir_okay=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Run your own script under probes, and say what is wrong with it.

    Its output, arguments, exit code and signals pass through. When it has
    ended, after a crash too, the report comes on standard error. With --json
    it is on standard output, and the script's output on standard error.
    """
    from breakfix.examine import launch, page, terminal
    from breakfix.examine.findings import KINDS
    from breakfix.examine.report import report_of

    if unknown := set(silence or ()) - KINDS.keys():
        raise typer.BadParameter(f"no finding is called {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    command = [sys.executable, *command] if command[0].endswith(".py") else command
    try:
        run = launch.examine(command, ENVIRONMENT, sys.stderr if as_json else None)
    except OSError as error:
        typer.echo(f"error: {command[0]} cannot be started: {error.strerror}", err=True)
        raise typer.Exit(USAGE) from None
    report = report_of(run, command, silence or ())
    if html:
        html.write_text(page.html(report), "utf-8")
    print_json(report.to_json()) if as_json else terminal.console.print(terminal.render(report))
    launch.leave_like(run.code)
