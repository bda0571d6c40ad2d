"""The page that a student gets, as HTML with the lab's figure: what was measured, the bound and why it matters.

It is one file that loads nothing. Names, messages and whatever a submission printed are shown as text; of a student's
evidence only numbers are drawn.
"""

from collections.abc import Callable

from breakfix.catalog import Catalog, Lab
from breakfix.evidence import BadFrame, decode
from breakfix.grading.cohort import SOLUTION, STARTER, own_key
from breakfix.grading.exports import Graded, per_point, why
from breakfix.render.figures import draw
from breakfix.render.page import document, table, text
from breakfix.render.terminal import RELATIONS, value_and_bound
from breakfix.verdict import FAILED, PASSED, CheckResult, Figure, Verdict

Verdicts = Callable[[str], Verdict | None]  # of a key of the gradebook


def page(rows: list[Graded], title: str, catalog: Catalog, verdicts: Verdicts) -> str:
    """HTML for one student; `verdicts` gives those on the labs' own files, which her figures stand beside."""
    earned = sum(row.grade.points * row.grade.kept_percent // 100 for row in rows)
    head = f"<p>{earned} of {sum(row.grade.most for row in rows)} points.</p>"
    labs = "".join(_lab(row, catalog[row.grade.lab], verdicts) for row in rows)
    return document(f"{title}: {rows[0].grade.student}", head + labs)


def _lab(row: Graded, lab: Lab, verdicts: Verdicts) -> str:
    grade = row.grade
    late = f" Handed in late: {grade.kept_percent} % of it counts." if grade.kept_percent < 100 else ""
    sign = "✓" if row.verdict and row.verdict.passed else "✗"
    head = f"<h2>{text(lab.id)}: {text(lab.title)}</h2>"
    head += f"<p>{sign} {text(grade.state)}, {grade.points} of {grade.most} points.{late}</p>"
    if not (row.verdict and row.verdict.checks):
        return f'{head}<pre class="wrap">{text(why(row))}</pre>'
    return head + _figure(row.verdict, lab, verdicts) + "".join(_check(check, row) for check in row.verdict.checks)


def _figure(hers: Verdict, lab: Lab, verdicts: Verdicts) -> str:
    """Hers beside the lab's fix, or, once she has passed, the file as it was given beside hers."""
    other = verdicts(own_key(lab.id, STARTER if hers.passed else SOLUTION))
    if other is None:
        return ""
    sides = (other, hers) if hers.passed else (hers, other)
    names = ("as it was given", "yours") if hers.passed else ("yours", "repaired")
    try:
        svg = draw(lab, *(decode(verdict.frame) for verdict in sides), names=names)
    except (BadFrame, TypeError, ValueError, ArithmeticError, LookupError):  # a stranger's numbers may fit no figure
        return ""
    return f"<figure>{svg}<figcaption>{text(lab.figure.get('title', ''))}</figcaption></figure>"


def _check(check: CheckResult, row: Graded) -> str:
    """One check: what it demands and why, then each figure beside its bound, those out of bound first."""
    sign, look = ("✓", "good") if check.passed else ("✗", "bad")
    most = check.points * per_point(row)
    earned = f"{most if check.passed and row.verdict.state in (PASSED, FAILED) else 0} of {most}"
    head = f'<h3><span class="{look}">{sign}</span> {text(check.name)} <span class="dim">{earned}</span></h3>'
    head += f"<p>{text(' '.join(check.says.split()))}</p>"
    if not check.figures:
        return head if check.passed else f'{head}<pre class="wrap">{text(check.message)}</pre>'
    rows = list(map(_row, sorted(check.figures, key=lambda figure: figure.holds)))
    figures = table(["", "figure", "measured", "bound"], rows, numbers=2)
    what = "1 figure" if len(rows) == 1 else f"{len(rows)} figures"
    return head + (
        f"<details><summary>{what}, all within bound</summary>{figures}</details>" if check.passed else figures
    )


def _row(figure: Figure) -> list[str]:
    value, bound = value_and_bound(figure)
    sign = "✓" if figure.holds else "✗ out of bound"
    unit = text(figure.unit)
    return [sign, text(figure.what), f"{text(value)} {unit}", f"{RELATIONS[figure.relation]} {text(bound)} {unit}"]
