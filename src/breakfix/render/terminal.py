"""Verdicts, evidence and reports in the terminal. A sign or a word says what a colour says."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.markdown import Markdown
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from breakfix.catalog import Lab
from breakfix.verdict import FAILED, NOT_MEASURABLE, PASSED, CheckResult, Figure, Verdict

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

SIGNS = {PASSED: ("✓", "green"), FAILED: ("✗", "red"), NOT_MEASURABLE: ("?", "yellow")}
SHOWN_FIGURES = 3  # of a check: the broken ones come first


def number(value: Any) -> str:
    """A value as people read it: 4 significant digits, thousands apart."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}".replace(",", " ")
    return f"{value:.4g}"


def figure(f: Figure) -> str:
    """`loss error, float32 full: 0.4, at most 1e-05`."""
    words = {"<=": "at most", ">=": "at least", "==": "wanted"}[f.relation]
    unit = f" {f.unit}" if f.unit else ""
    return f"{f.what}: {number(f.value)}{unit}, {words} {number(f.bound)}{unit}"


def verdict(v: Verdict, lab: Lab) -> Group:
    """A verdict with every check, and the figures of those that did not pass."""
    sign, colour = SIGNS.get(v.state, ("✗", "red"))
    earned, possible = v.points
    score = f"  {earned} of {possible} points" if v.checks else ""
    head = Text.assemble((f"{sign} {v.state}", f"bold {colour}"), f"  {lab.id}  {lab.title}{score}")
    parts = [head, *(check(c) for c in v.checks)]
    if v.detail:
        parts.append(Padding(Text(v.detail), (1, 2)))
    if v.log.strip() and not v.passed:
        parts.append(Padding(Text("It printed:\n" + _tail(v.log), style="dim"), (0, 2)))
    return Group(*parts, Text(conditions(v), style="dim"))


def check(c: CheckResult) -> Group:
    """One check: its sign, what it demands, and the figures that decided."""
    sign, colour = SIGNS[c.state]
    says = c.says.splitlines()[0] if c.says else c.name
    line = Text.assemble((f"  {sign} ", colour), says, (f"  [{c.name}, {c.points}]", "dim"))
    if c.passed:
        return Group(line)
    broken = [f for f in c.figures if not f.holds]
    shown = [Text("      " + figure(f), style=colour) for f in broken[:SHOWN_FIGURES]]
    if not broken:
        shown = [Text("      " + c.message, style=colour)]
    return Group(line, *shown)


def conditions(v: Verdict) -> str:
    """Seed, device, versions and cost of a verdict, in one line."""
    words = [f"seed {v.seed}", v.device, f"torch {v.versions.get('torch', '?')}"]
    if "cpu_seconds" in v.outside:
        words.append(f"{v.outside['cpu_seconds']:.2f} CPU s, {v.outside['maxrss_mib']:.0f} MiB")
    return " · ".join(words)


def evidence_table(evidence: Mapping[str, Any], title: str = "Evidence") -> Table:
    """Every key of the evidence with its value, arrays in a few words."""
    table = Table("what", "value", title=title, title_justify="left", box=None, pad_edge=False)
    for name, value in evidence.items():
        table.add_row(escape(name), escape(_brief(value)))
    return table


def compared(broken: Verdict, fixed: Verdict) -> Table:
    """Broken against fixed, with the bound: of each check that the broken one fails the figure that shows it best."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("what", ratio=3)
    for name in ("broken", "fixed", "bound"):
        table.add_column(name, justify="right")
    for was, now in figure_pairs(broken, fixed):
        relation = {"<=": "≤", ">=": "≥", "==": "="}[was.relation]
        fixed_value = f"[green]{escape(number(now.value))}[/]" if now else "-"
        bound = f"{relation} {number(was.bound)}{' ' + was.unit if was.unit else ''}"
        table.add_row(escape(was.what), f"[red]{escape(number(was.value))}[/]", fixed_value, escape(bound))
    return table


def figure_pairs(broken: Verdict, fixed: Verdict) -> list[tuple[Figure, Figure | None]]:
    """For every check that the broken one fails: its first figure out of bound, and the fixed one's of the same name."""
    now = {(c.name, f.what): f for c in fixed.checks for f in c.figures}
    pairs = []
    for c in broken.checks:
        out = [f for f in c.figures if not f.holds]
        if not c.passed and out:
            pairs.append((out[0], now.get((c.name, out[0].what))))
    return pairs


def plain(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence for JSON: arrays as nested lists, nan and inf as strings."""
    return {k: _plain(v.tolist() if isinstance(v, np.ndarray) else v) for k, v in evidence.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return repr(value) if isinstance(value, float) and not np.isfinite(value) else value


def readme(text: str) -> Markdown:
    """A README, for reading in the terminal."""
    return Markdown(text)


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        finite = value[np.isfinite(value)] if value.dtype.kind == "f" else value
        span = f", {number(finite.min().item())} to {number(finite.max().item())}" if finite.size else ""
        bad = f", {value.size - finite.size} not finite" if finite.size < value.size else ""
        return f"{value.dtype} {list(value.shape)}{span}{bad}"
    text = number(value.item() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 100 else text[:97] + "..."


def _tail(log: str, lines: int = 12) -> str:
    return "\n".join(log.strip().splitlines()[-lines:])
