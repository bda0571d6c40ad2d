"""The command line: a thin layer over the rest, with the exit codes of breakfix.verdict."""

import json
import os
import re
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from breakfix import __version__
from breakfix.catalog import BadLab, UnknownLab
from breakfix.render.terminal import errors
from breakfix.state import WorkspaceError
from breakfix.verdict import ENVIRONMENT, USAGE
from breakfix.zygote import ENVIRONMENT as ENVIRONMENT_VARIABLES
from breakfix.zygote import EngineFailed

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,  # its options would come before the commands in the help
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 passed, 1 not yet, 2 usage, 3 environment, 4 time or memory limit, 5 not measurable.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = (
        False
    ),
) -> None:
    """PyTorch failures you can run, fix and prove fixed. Begin with `breakfix start`."""


def _device(name: str | None) -> str | None:
    if name is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise typer.BadParameter(f"{name!r}; choose cpu, cuda, or one card as in cuda:1")
    return name


LabName = Annotated[str | None, typer.Argument(help="A lab, as in lab08 or 8. Inside its folder it may be left out.")]
LabNames = Annotated[
    list[str] | None, typer.Argument(help="Labs, as in lab08 or 8. Inside a lab's folder it may be left out.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.", callback=_device)]
BestDevice = Annotated[
    str | None, typer.Option("--device", help="cpu or cuda (default: the best there is).", callback=_device)
]
Seed = Annotated[int | None, typer.Option("--seed", help="The seed of every secret input (default: a fresh one).")]


def print_json(data: Any) -> None:
    """Print `data` as JSON and nothing else; in ASCII, so that no terminal or pipe can spoil it."""
    print(json.dumps(data, indent=2, allow_nan=False))


def commands() -> typer.Typer:
    """The application with every command registered, in the order of the help."""
    for name in ("learner", "more", "demo", "examine", "gate", "instructor", "classroom", "author", "records"):
        import_module(f"breakfix.cli.{name}")
    return app


def main() -> None:
    """Run the command line; a known trouble becomes one clear message and its exit code."""
    run = commands()
    for key, value in ENVIRONMENT_VARIABLES.items():  # `run` measures in this very process
        os.environ.setdefault(key, value)
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # a random.py in the current folder is not Python's own
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without ✓ shows ? rather than a traceback
            stream.reconfigure(errors="replace")
    try:
        run()
    except (UnknownLab, WorkspaceError) as error:
        _fail(error.args[0], USAGE)
    except BadLab as error:
        _fail(f"a lab's files have faults, which `breakfix verify` explains:\n{error}", ENVIRONMENT)
    except EngineFailed as error:
        _fail(str(error), ENVIRONMENT)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _fail(f"{error.strerror or error}{where}; mend that, or work in another folder", ENVIRONMENT)


def _fail(message: str, code: int) -> None:
    errors.print("[bold red]error:[/] ", end="")
    errors.print(message, markup=False, soft_wrap=True)
    sys.exit(code)
