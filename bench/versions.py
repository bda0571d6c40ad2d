"""Verify all labs under several releases of PyTorch, and say which failures have changed or vanished.

    make versions                          2.11, 2.13 and 2.14
    python bench/versions.py 2.11.0 lab08  one release, one lab

Each release gets an environment of its own in .cache/versions (about 6 GB), made once. On another release than the
pinned one `breakfix verify` asks of a wrong fix only that it fails one of the checks that it names, never that it
passes.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
ENVIRONMENTS, REPORT = ROOT / ".cache" / "versions", ROOT / "records" / "versions.json"
TORCHVISION = {"2.11.0": "0.26.0", "2.13.0": "0.28.0", "2.14.1": "0.29.1"}  # what fits torch; 2.15 has none yet
console = Console()


def main(names: Annotated[list[str] | None, typer.Argument(help="Releases and labs.")] = None) -> None:
    """Releases (default: the supported ones) times labs (default: all)."""
    releases = [name for name in names or [] if name[0].isdigit()] or list(TORCHVISION)
    labs = [name for name in names or [] if not name[0].isdigit()]
    found = {release: verified(release, labs) for release in releases}
    console.print(_table(found))
    for release, problems in found.items():
        for lab, told in problems.items():
            for line in told:
                console.print(f"{release} {lab}: {line}", markup=False)
    if not labs:
        REPORT.write_text(json.dumps({"date": _today(), "releases": found}, indent=1) + "\n", "utf-8")
    raise typer.Exit(any(told for problems in found.values() for told in problems.values()))


def verified(release: str, labs: list[str]) -> dict[str, list[str]]:
    """What is wrong with each lab under a release of torch; an environment that cannot be made is the only entry."""
    try:
        binaries = environment(release)
    except subprocess.CalledProcessError as error:
        return {"environment": [error.stderr.decode(errors="replace").strip().splitlines()[-1]]}
    command = [binaries / "breakfix", "verify", *labs, "--seeds", "1", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT)
    return {report["lab"]: report["problems"] for report in json.loads(done.stdout)}


def environment(release: str) -> Path:
    """The folder of its programs, made if it is not there."""
    folder = ENVIRONMENTS / release
    if not (folder / "ready").exists():
        console.print(f"making an environment with torch {release}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, capture_output=True)
        wanted = [f"torch=={release}", f"torchvision=={TORCHVISION[release]}"]
        install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *wanted, "-e", f"{ROOT}[onnx,serve,quantize]"], check=True, capture_output=True)
        (folder / "ready").touch()
    return folder / "bin"


def _table(found: dict[str, dict[str, list[str]]]) -> Table:
    table = Table("lab", *found, box=None, pad_edge=False, header_style="dim")
    for lab in dict.fromkeys(lab for problems in found.values() for lab in problems):
        table.add_row(lab, *(_cell(problems.get(lab)) for problems in found.values()))
    return table


def _cell(told: list[str] | None) -> str:
    return "-" if told is None else "[green]✓[/]" if not told else f"[red]✗ {len(told)}[/]"


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


if __name__ == "__main__":
    typer.run(main)
