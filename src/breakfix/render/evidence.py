"""What a run measured, in the terminal: keys that differ in their first part only become the rows of one table."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from breakfix.render.terminal import brief, console

FEWEST = 3  # rows of a family
SHORT = 16  # characters of a cell
MANY, NAMES = 8, 3  # a column of so many lists, of which one holds so many names, shows how many each holds


@dataclass(frozen=True)
class Family:
    """Keys `row.column`, each row with each column."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def keys(self) -> set[str]:
        return {f"{row}.{column}" for row in self.rows for column in self.columns}

    def table(self, cells: Mapping[str, str]) -> Table:
        """One line per row; at most as wide as the terminal."""
        table = _table("", *self.columns)
        for row in self.rows:
            table.add_row(Text(row, "dim"), *(Text(cells[f"{row}.{column}"]) for column in self.columns))
        return table

    def fitting(self, cells: Mapping[str, str], width: int) -> Iterator["Family"]:
        """The same in as many tables as it takes for each to be at most so wide; one column at least in each."""
        first, parts = max(map(len, self.rows)), [[]]
        room = width - first
        for column in self.columns:
            wide = 2 + max(len(column), *(len(cells[f"{row}.{column}"]) for row in self.rows))
            if wide > room and parts[-1]:
                parts.append([])
                room = width - first
            parts[-1].append(column)
            room -= wide
        return (Family(self.rows, tuple(columns)) for columns in parts)


def evidence_table(evidence: Mapping[str, Any]) -> Group:
    """All of it but long tables, how many they are below; what keys have in common stands once."""
    cells = _cells(evidence)
    found = [part for family in _families(cells) for part in family.fitting(cells, console.width)]
    told = set().union(*(family.keys for family in found))
    apart = {key: value for key, value in evidence.items() if key not in told and not _is_long(value)}
    long = sum(_is_long(value) for key, value in evidence.items() if key not in told)
    parts = [family.table(cells) for family in found]
    parts.append(_listed(apart))
    if long:
        parts.append(Text(f"tables  {long} more, which --json shows", "dim"))
    return Group(*(part for table in parts for part in (table, "")))


def _cells(evidence: Mapping[str, Any]) -> dict[str, str]:
    """Values that fit into a cell, by key; of lists of names that come again and again, how many they hold."""
    lists = {key: value for key, value in evidence.items() if _holds_names(value)}
    times = Counter(map(_column, lists))
    often = {_column(key) for key, value in lists.items() if len(value) >= NAMES and times[_column(key)] >= MANY}
    cells = {}
    for key, value in evidence.items():
        if key in lists and _column(key) in often:
            cells[key] = f"{len(value)} names"
        elif not isinstance(value, dict) and not _is_long(value) and len(text := brief(value)) <= SHORT:
            cells[key] = text or "-"
    return cells


def _holds_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _column(key: str) -> str:
    return key.rpartition(".")[2]


def _families(cells: Mapping[str, str]) -> list[Family]:
    """Rows that have the same columns, in the order of the first of each."""
    columns: dict[str, list[str]] = {}
    for key in cells:
        row, dot, column = key.rpartition(".")
        if dot:
            columns.setdefault(row, []).append(column)
    rows: dict[tuple[str, ...], list[str]] = {}
    for row, found in columns.items():
        rows.setdefault(tuple(found), []).append(row)
    return [Family(tuple(found), names) for names, found in rows.items() if len(found) >= FEWEST]


def _listed(evidence: Mapping[str, Any]) -> Table:
    table = _table("what", "value")
    table.columns[0].max_width = console.width // 2
    for column in table.columns:
        column.overflow = "fold"  # nothing is cut off, however long it is
    for key, value in evidence.items():
        row, dot, column = key.rpartition(".")
        table.add_row(Text.assemble((row + dot, "dim"), column), Text(brief(value)))
    return table


def _table(*headers: str) -> Table:
    return Table(*headers, box=None, pad_edge=False, header_style="dim")


def _is_long(value: Any) -> bool:
    """Whether a value is more than a line can tell: lists in a list, or an array of rows in which all is finite."""
    if isinstance(value, list):
        return any(isinstance(item, list | dict) for item in value)
    rows = isinstance(value, np.ndarray) and value.ndim > 1
    return rows and not (value.dtype.kind == "f" and not np.isfinite(value).all())
