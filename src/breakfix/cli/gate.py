"""The release gate on the command line: may this candidate replace what runs today?"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from breakfix.cli import AsJson, Device, app, print_json
from breakfix.render.terminal import console, errors
from breakfix.verdict import ENVIRONMENT

THREADS = os.environ.get("OMP_NUM_THREADS")  # as it was given, before the command line sets anything for itself


@app.command("gate", rich_help_panel="Anybody")
def gate_command(
    reference: Annotated[str, typer.Argument(help="What runs today: file.py:name, module:name, a .pt2 or an .onnx.")],
    candidate: Annotated[str, typer.Argument(help="What is to replace it: the same kinds.")],
    inputs: Annotated[str, typer.Option(help="Requests: a .pt with a list, an .npz, or file.py:name.")],
    tolerance: Annotated[
        float | None, typer.Option(min=0.0, help="Largest relative difference (default: by dtype, as probes.parity).")
    ] = None,
    ratio: Annotated[float, typer.Option(min=0.0, help="How many times as long the typical call may take.")] = 1.2,
    runs: Annotated[int, typer.Option(min=1, help="How many runs at least; each request is tried in any case.")] = 1000,
    pairs: Annotated[int, typer.Option(min=1, help="How many calls of each side are timed, for each shape.")] = 30,
    device: Device = "cpu",
    html: Annotated[Path | None, typer.Option("--html", help="Write a page that tells it.", dir_okay=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a release may go out: same answers, in time, nothing kept.

    Every request is put to both sides. Shape, dtype and values are compared, with nan where the reference has it; the
    typical call of both, in turn, at each shape; and the tensors that stay alive from one request to the next.
    """
    if html and not html.absolute().parent.is_dir():
        raise typer.BadParameter(f"--html {html}: there is no such folder")
    if not all(map(math.isfinite, (tolerance or 0.0, ratio))):
        raise typer.BadParameter("--tolerance and --ratio are finite numbers")
    _threads_as_given()
    from breakfix import gate
    from breakfix.render import gates

    limits = gate.Limits(tolerance, ratio, runs, pairs)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what a model prints is no JSON
        models, requests = _loaded(reference, candidate, inputs, device)
        with _progress(as_json) as follow:
            try:
                report = gate.gate(*models, requests, _clock(device), limits, follow)
            except gate.BadReference as error:
                raise typer.BadParameter(str(error)) from None
    told = report, (reference, candidate), _conditions(device)
    if html:
        html.write_text(gates.page(*told), "utf-8")
    print_json(_json(*told)) if as_json else console.print(gates.terminal(*told))
    raise typer.Exit(0 if report.passed else 1)


def _threads_as_given() -> None:
    """Let torch use as many threads as it does in production: the command line asks for one, for labs."""
    if THREADS is None:
        os.environ.pop("OMP_NUM_THREADS", None)


def _loaded(reference: str, candidate: str, inputs: str, device: str) -> tuple[list[Callable], dict[str, Any]]:
    from breakfix import gate_sources

    try:
        requests = gate_sources.load_requests(inputs, device)
        return [gate_sources.load_model(source) for source in (reference, candidate)], requests
    except gate_sources.MissingPackage as error:
        errors.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(ENVIRONMENT) from None
    except gate_sources.BadSource as error:
        raise typer.BadParameter(str(error)) from None


def _clock(device: str) -> Callable[[], float]:
    """Seconds; a card is waited for first, as a call only queues its work there."""
    if not device.startswith("cuda"):
        return time.perf_counter
    import torch  # not run on a GPU yet

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


@contextmanager
def _progress(hidden: bool) -> Iterator[Callable[[int, int, str], None]]:
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    shown = errors.is_terminal and not hidden
    with Progress(*columns, console=errors, transient=True, disable=not shown) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total, what: progress.update(task, completed=done, total=total, description=what)


def _json(report: Any, names: tuple[str, str], conditions: str) -> dict[str, Any]:
    return {"reference": names[0], "candidate": names[1], "conditions": conditions, **report.to_json()}


def _conditions(device: str) -> str:
    import torch

    return f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads"
