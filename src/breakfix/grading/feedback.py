"""The page that a student gets: for each check what was measured, the bound, and why it matters."""

import html
import re

from breakfix.catalog import Catalog
from breakfix.grading.exports import Graded, why
from breakfix.render.terminal import RELATIONS, value_and_bound
from breakfix.verdict import CheckResult, Figure


def page(rows: list[Graded], title: str, catalog: Catalog) -> str:
    """Markdown for one student. Nothing that a submission printed or named can become markup."""
    earned = sum(row.grade.points * row.grade.kept_percent // 100 for row in rows)
    head = (
        f"# {_safe(title)}: {_safe(rows[0].grade.student)}\n\n{earned} of {sum(r.grade.most for r in rows)} points.\n"
    )
    return head + "".join(_lab(row, catalog) for row in rows)


def _lab(row: Graded, catalog: Catalog) -> str:
    grade, lab = row.grade, catalog[row.grade.lab]
    late = f" Handed in late: {grade.kept_percent} % of it counts." if grade.kept_percent < 100 else ""
    head = f"\n## {lab.id}: {lab.title}\n\n{grade.state}, {grade.points} of {grade.most} points.{late}\n"
    if not (row.verdict and row.verdict.checks):
        return f"{head}\n{_block(why(row))}"
    return head + "".join(_check(check) for check in row.verdict.checks)


def _check(check: CheckResult) -> str:
    """One check: its sentence, then a table of figures."""
    head = f"\n### {'✓' if check.passed else '✗'} {check.name}\n\n{_safe(check.says)}\n"
    if not check.figures:
        return head if check.passed else f"{head}\n{_block(check.message)}"
    return f"{head}\n| | figure | measured | bound |\n|---|---|---:|---:|\n" + "".join(map(_row, check.figures))


def _row(figure: Figure) -> str:
    value, bound = value_and_bound(figure)
    cells = ("✓" if figure.holds else "✗", figure.what, f"{value} {figure.unit}")
    return f"| {' | '.join(map(_safe, cells))} | {RELATIONS[figure.relation]} {_safe(bound)} {_safe(figure.unit)} |\n"


def _safe(text: str) -> str:
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _block(text: str) -> str:
    """Text as it is, indented: in Markdown nothing in it means anything."""
    return "\n".join(f"    {line}" for line in text.splitlines()) + "\n"
