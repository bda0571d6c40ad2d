"""The list of labs and the doctor's report, as tables that fit the terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from breakfix.render.terminal import WIDEST, console
from breakfix.workspace import NOT_STARTED, PASSED

ROOMY = 100  # columns from which there is room for more than what a learner needs to choose
MARKS = {PASSED: ("✓", "green"), NOT_STARTED: ("", "")}
BEGUN = ("…", "yellow")


def table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """One line per lab: how far the learner is, what it is about, how hard it is, how long it takes."""
    roomy = console.width >= ROOMY
    found = Table(box=None, pad_edge=False, header_style="dim")
    found.add_column("", width=1)
    found.add_column("lab", no_wrap=True)
    found.add_column("title", min_width=20)
    found.add_column("track", no_wrap=True)
    for name in ("level", "minutes") if roomy else ("lvl", "min"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("yours")
    for row in rows:
        found.add_row(
            Text(*MARKS.get(row["status"], BEGUN)), row["lab"], Text(row["title"]), row["track"],
            str(row["level"]), str(row["minutes"]), _yours(row),
        )  # fmt: skip
    return found


def _yours(row: Mapping[str, Any]) -> Text:
    """`passed, 2 hints`, and what this machine lacks."""
    words = [row["status"]]
    if row["hints"]:
        words.append(f"{row['hints']} hint{'s' * (row['hints'] > 1)}")
    if row["solution_seen"]:
        words.append("solution seen")
    return Text.assemble(", ".join(words), (f"; {row['lacking']}" if row["lacking"] else "", "yellow"))


def report(parts: Mapping[str, Mapping[str, Any]]) -> Group:
    """Each part of a report with its entries below each other."""
    return Group(*(Group(Text(name, "bold"), Padding(_entries(entries), (0, 2))) for name, entries in parts.items()))


def _entries(entries: Mapping[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=20, no_wrap=True)
    grid.add_column(max_width=WIDEST)
    for key, value in entries.items():
        grid.add_row(Text(key, "dim"), Text(str(value)))
    return grid
