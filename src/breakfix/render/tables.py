"""Two verdicts as a table: what the broken implementation showed, what the fixed one shows, and what was demanded."""

from collections.abc import Iterable
from dataclasses import dataclass

from breakfix.render.terminal import number
from breakfix.verdict import CheckResult, Figure, Verdict

RELATIONS = {"<=": "≤", ">=": "≥", "==": "="}


@dataclass(frozen=True)
class Row:
    """One figure of one check, as each side showed it; None where a side never came to it."""

    check: str
    what: str
    broken: Figure | None
    fixed: Figure | None

    @property
    def demand(self) -> str:
        """The bound, as in `≤ 0.01`."""
        figure = self.fixed or self.broken
        return f"{RELATIONS[figure.relation]} {number(figure.bound)}{' ' * bool(figure.unit)}{figure.unit}"


def rows(broken: Verdict, fixed: Verdict) -> list[Row]:
    """Every figure that the checks looked at, in their order."""
    sides = [{check.name: check for check in verdict.checks} for verdict in (broken, fixed)]
    return [
        row
        for name in dict.fromkeys(n for side in sides for n in side)
        for row in _of_check(name, *(s.get(name) for s in sides))
    ]


def deciding(every: Iterable[Row]) -> list[Row]:
    """One row per check: the figure on which the broken one failed, else the check's first."""
    chosen: dict[str, Row] = {}
    for row in every:
        failed = row.broken is not None and not row.broken.holds
        if failed or row.check not in chosen:
            chosen[row.check] = row
    return list(chosen.values())


def markdown(table: Iterable[Row]) -> str:
    """The rows as a Markdown table; a check's name stands in the first of its rows only."""
    lines, last = ["| what | broken | fixed | bound |", "|---|---:|---:|---:|"], ""
    for row in table:
        name = "" if row.check == last else f"**{title(row.check)}**: "
        cells = [name + row.what, _shown(row.broken), _shown(row.fixed), row.demand]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        last = row.check
    return "\n".join(lines)


def title(check: str) -> str:
    """`equals float64` for test_equals_float64."""
    return check.removeprefix("test_").replace("_", " ")


def _shown(figure: Figure | None) -> str:
    """A sign and the number; a dash where the check had ended before."""
    return "–" if figure is None else f"{'✓' if figure.holds else '✗'} {number(figure.value)}"


def _of_check(name: str, broken: CheckResult | None, fixed: CheckResult | None) -> list[Row]:
    left, right = _numbered(broken), _numbered(fixed)
    return [Row(name, key[0], left.get(key), right.get(key)) for key in dict.fromkeys([*right, *left])]


def _numbered(check: CheckResult | None) -> dict[tuple[str, int], Figure]:
    """Its figures by what they are about and, where a check looks twice at the same, by their number."""
    found: dict[tuple[str, int], Figure] = {}
    for figure in check.figures if check else ():
        count = sum(1 for what, _ in found if what == figure.what)
        found[figure.what, count] = figure
    return found
