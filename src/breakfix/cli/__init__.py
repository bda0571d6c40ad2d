"""The command line: a thin layer over the rest, with the exit codes of breakfix.verdict."""

import json
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from breakfix.catalog import BadLab, UnknownLab
from breakfix.render.terminal import errors
from breakfix.verdict import ENVIRONMENT, USAGE
from breakfix.workspace import WorkspaceError
from breakfix.zygote import ENVIRONMENT as ENVIRONMENT_VARIABLES
from breakfix.zygote import EngineFailed

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="PyTorch failures you can run, fix and prove fixed.",
    epilog="Exit codes: 0 passed, 1 not yet, 2 usage, 3 environment, 4 time or memory limit, 5 not measurable.",
)

LabName = Annotated[str | None, typer.Argument(help="A lab, as in lab08 or 8. Inside its folder it may be left out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
Seed = Annotated[int | None, typer.Option("--seed", help="The seed of every secret input (default: a fresh one).")]


def print_json(data: Any) -> None:
    """Print `data` as JSON and nothing else."""
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def main() -> None:
    """Run the command line; a known trouble becomes one clear message and its exit code."""
    for name in ("learner", "demo", "author"):  # they register their commands, in the order of the help
        import_module(f"breakfix.cli.{name}")
    for key, value in ENVIRONMENT_VARIABLES.items():  # `run` measures in this very process
        os.environ.setdefault(key, value)
    try:
        app()
    except (UnknownLab, WorkspaceError) as error:
        _fail(error.args[0], USAGE)
    except BadLab as error:
        _fail(f"a lab's files have faults:\n{error}", ENVIRONMENT)
    except EngineFailed as error:
        _fail(str(error), ENVIRONMENT)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        _fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), USAGE)


def _fail(message: str, code: int) -> None:
    errors.print("[bold red]error:[/] ", end="")
    errors.print(message, markup=False)
    sys.exit(code)
