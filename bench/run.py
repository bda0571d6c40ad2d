"""Speed of the engine and of the labs, as ratios and medians of one run on this machine.

Wall times depend on what else the machine does; each ratio is taken from interleaved runs. Nothing here is asserted in
the tests: read the table.
"""

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from breakfix.catalog import Catalog, Lab
from breakfix.cli.demo import COMMISSIONED
from breakfix.judge import fresh_seed, versions
from breakfix.verify import cases_of, outcome
from breakfix.zygote import ENVIRONMENT, Engine

HERE = Path(__file__).parent
PARTS = {  # and what each is told
    "warm": (),
    "overhead": (),
    "measure": ("labs",),
    "demo": (),
    "repeats": ("labs", "times"),
    "variants": ("labs",),
}
console = Console()


def warm(engine: Engine) -> dict:
    """A cold pytest of fifty Adam steps against a warm verdict on the same, interleaved."""
    lab = Catalog.read(HERE / "root")["lab98"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "cold")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    engine.judge(lab, lab.starter, 1)
    cold, hot = [], []
    for seed in track(range(7), "warm against cold", console=console, transient=True):
        cold.append(_timed(lambda: subprocess.run(command, env=environment, check=True, capture_output=True)))
        hot += [_timed(lambda s=seed: engine.judge(lab, lab.starter, s)) for _ in range(5)]
    ratio = statistics.median(cold) / statistics.median(hot)
    return {
        "cold pytest, s": statistics.median(cold),
        "warm verdict, s": statistics.median(hot),
        "cold / warm (at least 15)": ratio,
    }


def overhead(engine: Engine) -> dict:
    """CPU time of a verdict whose measurement and checks do nothing: judge, subject and the zygote's forks."""
    lab = Catalog.read(HERE / "root")["lab99"]
    engine.judge(lab, lab.starter, 1)
    before, used = engine.cpu_seconds(), []
    for seed in range(30):
        used.append(engine.judge(lab, lab.starter, seed).outside["judge_cpu_seconds"])
    forks = (engine.cpu_seconds() - before) / 30
    return {
        "engine's own CPU s per verdict (at most 0.15)": statistics.median(used) + forks,
        "of it the zygote's fork": forks,
    }


def measure(engine: Engine, labs: list[Lab]) -> dict:
    """CPU seconds of each lab's measure(), the worst of starter and solution on three seeds, beside its budget."""
    result = {}
    for lab in labs:
        seconds = [
            engine.judge(lab, path, seed, ask=False).outside.get("cpu_seconds", float("nan"))
            for path in (lab.starter, lab.solution)
            for seed in (1, 2, 3)
        ]
        result[f"{lab.id} measure(), CPU s (at most {lab.bounds.cpu_seconds:g})"] = max(seconds)
    return result


def demo(engine: Engine) -> dict:
    """Wall time of `breakfix demo`."""
    command = [sys.executable, "-m", "breakfix", "demo", "--json"]
    seconds = _timed(lambda: subprocess.run(command, check=True, capture_output=True))
    return {f"demo of {len(COMMISSIONED)} labs, s (at most 60)": seconds}


def repeats(engine: Engine, labs: list[Lab], times: int) -> dict:
    """Verdicts of each starter and solution on fresh seeds, every core kept busy: do the outcomes ever differ?"""
    result = {}
    with _all_cores_busy():
        for lab in labs:
            for role, path in (("starter", lab.starter), ("solution", lab.solution)):
                seeds = [fresh_seed() for _ in range(times)]
                outcomes = Counter(_outcomes(engine, lab, path, seeds, f"{lab.id} {role}"))
                differ = times - outcomes.most_common(1)[0][1]
                result[f"{lab.id} {role}: of {times} verdicts differ (0)"] = differ
    return result


def variants(engine: Engine, labs: list[Lab]) -> dict:
    """Wall time of judging every starter, solution and variant on three seeds, nothing from the cache."""
    return {f"{lab.id}: every file on three seeds, s": _timed(lambda lab=lab: _judge_all(engine, lab)) for lab in labs}


def _judge_all(engine: Engine, lab: Lab) -> None:
    jobs = [(lab, case.path, seed) for case in cases_of(lab) for seed in (1, 2, 3)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(lambda j: engine.judge(*j), jobs)
        list(track(done, f"variants of {lab.id}", total=len(jobs), console=console, transient=True))


def _outcomes(engine: Engine, lab: Lab, path: Path, seeds: list[int], what: str) -> Iterator[frozenset[str]]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = pool.map(lambda seed: engine.judge(lab, path, seed), seeds)
        for verdict in track(verdicts, what, total=len(seeds), console=console, transient=True):
            yield outcome(verdict)


@contextmanager
def _all_cores_busy() -> Iterator[None]:
    burners = [multiprocessing.get_context("spawn").Process(target=_burn, daemon=True) for _ in range(os.cpu_count())]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()


def _burn() -> None:
    while True:
        pass


def _timed(action) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


def main(
    parts: Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(PARTS)} (default: all).")] = None,
    lab: Annotated[list[str] | None, typer.Option(help="For measure, repeats, variants (default: all).")] = None,
    times: Annotated[int, typer.Option(help="Verdicts per file in `repeats`.")] = 100,
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
) -> None:
    """Measure the engine and the labs, and print the figures beside what they should reach."""
    if unknown := set(parts or ()) - set(PARTS):
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(PARTS)}")
    os.environ |= ENVIRONMENT
    catalog, figures = Catalog.read(), {}
    given = {"labs": [catalog[name] for name in lab] if lab else list(catalog), "times": times}
    with Engine() as engine:
        for part in parts or PARTS:
            figures |= globals()[part](engine, **{k: v for k, v in given.items() if k in PARTS[part]})
    table = Table("what", "value", box=None)
    for name, value in figures.items():
        table.add_row(name, f"{value:.3g}")
    console.print(table)
    console.print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, torch {versions()['torch']}", style="dim")
    if out:
        out.write_text(
            json.dumps({"figures": figures, "versions": versions(), "load": os.getloadavg()}, indent=2) + "\n"
        )


if __name__ == "__main__":
    typer.run(main)
