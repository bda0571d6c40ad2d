"""Verdicts, evidence and reports in the terminal. A sign or a word says what a colour says."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from breakfix.catalog import Lab
from breakfix.verdict import FAILED, NOT_MEASURABLE, PASSED, CheckResult, Figure, Verdict

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

SIGNS = {PASSED: ("✓", "green"), FAILED: ("✗", "red"), NOT_MEASURABLE: ("?", "yellow")}
NO_VERDICT = ("!", "red")  # a timeout, an error, something that this machine lacks
WORDS = {"<=": "at most", ">=": "at least", "==": "wanted"}
RELATIONS = {"<=": "≤", ">=": "≥", "==": "="}
SHOWN_FIGURES = 3  # of a check that failed
SHOWN_LINES = 12  # of what a subject printed
ALIKE_FROM = 80  # characters: shorter lines that differ in their numbers are what somebody wants to see
WIDEST = 110  # columns: longer lines are hard to read


def number(value: Any) -> str:
    """A value as people read it: 4 significant digits, thousands apart."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    whole = isinstance(value, int) or (abs(value) < 1e15 and (value.is_integer() or abs(value) >= 1000))
    return f"{round(value):,}".replace(",", " ") if whole else f"{value:.4g}"


def value_and_bound(f: Figure) -> tuple[str, str]:
    """Both as people read them, with as many digits as it takes to tell them apart."""
    value, bound = number(f.value), number(f.bound)
    if value == bound and f.value != f.bound and isinstance(f.value, float):
        return repr(f.value), repr(f.bound)
    return value, bound


def figure(f: Figure) -> str:
    """`loss error, float32 full: 0.4, at most 1e-05`."""
    value, bound = value_and_bound(f)
    unit = f" {f.unit}" if f.unit else ""
    return f"{f.what}: {value}{unit}, {WORDS[f.relation]} {bound}{unit}"


def verdict(v: Verdict, lab: Lab) -> Group:
    """A verdict with every check, and the figures of those that did not pass."""
    sign, colour = SIGNS.get(v.state, NO_VERDICT)
    earned, possible = v.points
    score = f" · {earned} of {possible} points" if v.checks else ""
    parts: list[RenderableType] = [Text.assemble((f"{sign} {v.state}", f"bold {colour}"), f"  {heading(lab)}{score}")]
    if v.checks:
        parts.append(Padding(checks(v.checks), (1, 0)))
    if v.detail:
        parts.append(Padding(Text(_without_long_carets(v.detail)), (1, 2)))
    if v.log.strip() and not v.passed:
        parts.append(Padding(Text("It printed:\n" + _tail(v.log), style="dim"), (0, 2, 1, 2)))
    return Group(*parts, Text(conditions(v), style="dim"))


def heading(lab: Lab) -> str:
    """`lab08  The loss is nan, but only on some batches`."""
    return f"{lab.id}  {lab.title}"


def checks(results: tuple[CheckResult, ...]) -> Table:
    """Each check with its sign, what it demands and what it earns; under one that failed the figures that decided."""
    table = Table.grid(padding=(0, 1))
    table.width = min(console.width, WIDEST)
    table.add_column(width=3, justify="right")
    table.add_column(ratio=1)
    table.add_column(justify="right")
    for c in results:
        sign, colour = SIGNS[c.state]
        table.add_row(Text(sign, colour), _check(c, colour), Text(f"{c.points * c.passed}/{c.points}", "dim"))
    return table


def _check(c: CheckResult, colour: str) -> Group:
    says = Text(c.says.splitlines()[0] if c.says else c.name)
    if c.passed:
        return Group(says)
    broken = [figure(f) for f in c.figures if not f.holds][:SHOWN_FIGURES]
    why = [Padding(Text(line, colour), (0, 0, 0, 2)) for line in broken or _first_lines(c.message)]
    return Group(says, *why, Padding(Text(c.name, "dim"), (0, 0, 0, 2)))


def conditions(v: Verdict) -> str:
    """Seed, device, versions and cost of a verdict, in one line."""
    words = [f"seed {v.seed}", v.device, f"torch {v.versions.get('torch', '?')}"]
    if "cpu_seconds" in v.outside:
        words.append(f"{v.outside['cpu_seconds']:.2f} CPU s, {v.outside['maxrss_mib']:.0f} MiB")
    return " · ".join(words)


def compared(broken: Verdict, fixed: Verdict) -> Table:
    """Broken against fixed, with the bound: of each check that the broken one fails its first figure out of bound."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("what")
    for name in ("broken", "fixed", "bound"):
        table.add_column(name, justify="right")
    for was, now in figure_pairs(broken, fixed):
        bound = f"{RELATIONS[was.relation]} {number(was.bound)}{' ' * bool(was.unit)}{was.unit}"
        fixed_value = Text(number(now.value), "green") if now else Text("-")
        table.add_row(Text(was.what), Text(number(was.value), "red"), fixed_value, Text(bound))
    return table


def figure_pairs(broken: Verdict, fixed: Verdict) -> list[tuple[Figure, Figure | None]]:
    """For every check that the broken one fails: its first figure out of bound, and that figure of the fixed one."""
    now = {(c.name, f.what): f for c in fixed.checks for f in c.figures}
    firsts = [(c.name, next((f for f in c.figures if not f.holds), None)) for c in broken.checks if not c.passed]
    return [(figure, now.get((name, figure.what))) for name, figure in firsts if figure]


def plain(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence for JSON: arrays as nested lists, nan and inf as strings."""
    return {k: _plain(v.tolist() if isinstance(v, np.ndarray) else v) for k, v in evidence.items()}


def readme(text: str) -> RenderableType:
    """A README, for reading in the terminal."""
    return Markdown(text)


def step(command: str, why: str = "") -> Text:
    """A line that says what to do next."""
    return Text.assemble("next: ", (command, "bold cyan"), (f"  {why}" if why else "", "dim"))


def brief(value: Any) -> str:
    """A value of the evidence in at most a few words."""
    if isinstance(value, np.ndarray) and value.ndim:
        return _array(value)
    if isinstance(value, dict):
        text = ", ".join(f"{k} {brief(v)}" for k, v in value.items())
    elif isinstance(value, list):
        text = f"[{', '.join(brief(item) or '-' for item in value)}]"
    else:
        text = number(value.item() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 160 else text[:157] + "..."


def _array(value: np.ndarray) -> str:
    """`float32 [5, 6, 23], -0.05875 to 0.05552, 276 not finite`."""
    finite = value[np.isfinite(value)] if value.dtype.kind == "f" else value
    span = f", {number(finite.min().item())} to {number(finite.max().item())}" if finite.size else ""
    bad = f", {value.size - finite.size} not finite" if finite.size < value.size else ""
    return f"{value.dtype} {list(value.shape)}{span}{bad}"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return repr(value) if isinstance(value, float) and not np.isfinite(value) else value


def _first_lines(message: str) -> list[str]:
    return message.strip().splitlines()[:SHOWN_LINES]


def _tail(log: str) -> str:
    """The last lines; of long ones that differ in numbers alone (a rank, a time) the last, and how many there are."""
    last, count = {}, Counter()
    for number, line in enumerate(log.strip().splitlines()):
        alike = re.sub(r"\d+", "0", line) if len(line) > ALIKE_FROM else number
        last.pop(alike, None)
        last[alike], count[alike] = line, count[alike] + 1
    shown = list(last)[-SHOWN_LINES:]
    return "\n".join(last[alike] + (f"  ({count[alike]} times)" if count[alike] > 1 else "") for alike in shown)


def _without_long_carets(traceback: str) -> str:
    """A line of ^^^^ points at nothing once the line above it is wrapped."""
    lines, room = traceback.splitlines(), console.width - 4
    above = ["", *lines]
    wrapped = [max(len(line), len(before)) > room for line, before in zip(lines, above, strict=False)]
    return "\n".join(line for line, w in zip(lines, wrapped, strict=True) if not (w and re.fullmatch(r"[\s~^]+", line)))
