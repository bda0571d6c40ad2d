"""The page on a class: how each lab went, which checks fail, which known mistakes the files have. It names nobody."""

from breakfix.catalog import Catalog
from breakfix.grading.exports import Graded
from breakfix.grading.statistics import LabStatistics, of_class
from breakfix.render import charts
from breakfix.render.page import document, table, text


def page(rows: list[Graded], title: str, catalog: Catalog) -> str:
    """HTML of a whole gradebook, in one file."""
    labs = of_class(rows, catalog)
    return document(f"{title}: how the class did", _overview(rows, labs) + "".join(_lab(lab, catalog) for lab in labs))


def _overview(rows: list[Graded], labs: list[LabStatistics]) -> str:
    totals: dict[str, int] = {}
    for row in rows:
        totals[row.grade.student] = totals.get(row.grade.student, 0) + row.grade.points * row.grade.kept_percent // 100
    most = sum(lab.most for lab in labs)
    mean = sum(totals.values()) / max(1, len(totals))
    count = "1 lab" if len(labs) == 1 else f"{len(labs)} labs"
    head = f"<p>{len(totals)} students, {count}; {mean:.1f} of {most} points on average.</p>"
    states = charts.stacked({lab.lab: lab.states for lab in labs}, "files", "States of every lab")
    spread = charts.histogram(list(totals.values()), most, "points", "Points of the students")
    return f"{head}<figure>{states}</figure><figure>{spread}</figure>"


def _lab(lab: LabStatistics, catalog: Catalog) -> str:
    says = {check.name: check.says for check in catalog[lab.lab].checks}
    parts = [f"<h2>{text(lab.lab)}: {text(lab.title)}</h2>", f"<p>{_states(lab)}</p>"]
    if lab.failed_checks:
        title = f"Checks that fail most in {lab.lab}"
        parts.append(f"<figure>{charts.bars(lab.failed_checks, f'files of {lab.judged}', title)}</figure>")
        rows = [[text(name), text(says.get(name, "")), str(n)] for name, n in lab.failed_checks.items()]
        parts.append(table(["check", "what it demands", "fail it"], rows, numbers=1))
    if lab.like:
        parts.append("<h3>What the failing files behave like</h3>")
        parts.append(table(["known mistake", "what it does", "files"], _mistakes(lab), numbers=1))
    return "".join(parts)


def _states(lab: LabStatistics) -> str:
    return text(", ".join(f"{n} {state}" for state, n in lab.states.items()))


def _mistakes(lab: LabStatistics) -> list[list[str]]:
    reasons = {found.told: found.reasons for found in lab.like_by_student.values()}
    return [
        [text(told).replace(" or ", "<br>or "), "<br>".join(map(text, reasons[told])), str(n)]
        for told, n in lab.like.items()
    ]
