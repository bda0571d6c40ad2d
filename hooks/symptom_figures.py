"""How well `breakfix symptom` answers: `python hooks/symptom_figures.py` writes the tables of docs/symptom.md.

The reports are real ones in our own words (tests/fixtures/reports.jsonl). Nothing is learnt from them, but some lab's
text may say the same by chance or because PyTorch's message is the same. So a fifth of the reports is asked at a time,
of an index that has learnt from no text that is near any of them.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from breakfix.catalog import Catalog
from breakfix.symptoms import Index, dot, learn, texts_of

ROOT = Path(__file__).parents[1]
PAGE, FIXTURES = ROOT / "docs" / "symptom.md", ROOT / "tests" / "fixtures"
FOLDS, NEAR = 5, 0.75  # cosine of two texts from which on one counts as the other's words
MARKS = "<!-- figures -->\n", "<!-- end of figures -->"
MESSAGE = re.compile(r"Error|ERROR|Exception|Warning|Assertion|Expected|Watchdog|overflow\.", re.ASCII)


@dataclass(frozen=True)
class Asked:
    """A report, the labs that answer it, those that were found, and whether any was near enough."""

    report: dict
    found: tuple[str, ...]
    covered: bool

    def among(self, first: int) -> bool:
        """Whether a right lab is among the first so many."""
        return not set(self.report["labs"]).isdisjoint(self.found[:first])


def reports() -> list[dict]:
    """Those that some lab answers."""
    lines = (FIXTURES / "reports.jsonl").read_text("utf-8").splitlines()
    return [report for report in map(json.loads, lines) if report["labs"]]


def held_out(catalog: Catalog) -> Iterator[Asked]:
    """Every report, asked of an index that knows no text like it."""
    texts, whole = list(texts_of(catalog)), Index.of(catalog)
    vectors = [whole.vector(text) for _, text in texts]
    for fold in range(FOLDS):
        asked = reports()[fold::FOLDS]
        said = [whole.vector(report["symptom"]) for report in asked]
        far = [t for t, v in zip(texts, vectors, strict=True) if max(dot(v, s) for s in said) < NEAR]
        index = learn(tuple(sorted(far)))
        yield from (_ask(report, index) for report in asked)


def _ask(report: dict, index: Index) -> Asked:
    ranked, covered = index.ranked(report["symptom"])
    return Asked(report, tuple(name.partition("_")[0] for name, _ in ranked[:3]), covered)


def rejected(catalog: Catalog) -> float:
    """Of texts that no lab is about, and that were not learnt from, the share that is said to be so."""
    lines = (FIXTURES / "unanswerable.txt").read_text("utf-8").splitlines()
    index = Index.of(catalog)
    return sum(not _ask({"symptom": line}, index).covered for line in lines) / len(lines)


def tables(asked: list[Asked], away: float) -> str:
    """The page's two tables."""
    groups = {
        "all reports": asked,
        "with a message of an error": [a for a in asked if MESSAGE.search(a.report["symptom"])],
        "without any": [a for a in asked if not MESSAGE.search(a.report["symptom"])],
        "in Chinese or Japanese": [a for a in asked if a.report["language"] != "en"],
        "not read while the texts were written": [a for a in asked if not a.report["seen"]],
    }
    classes = sorted({a.report["class"] for a in asked})
    by_class = {name: [a for a in asked if a.report["class"] == name] for name in classes}
    return (
        "Each report is asked of a table that has learnt from no text like it.\n\n"
        f"{_table('reports', groups.items())}\n\n"
        f"Of texts that no lab is about, and that were not learnt from, {away:.0%} are said to be so.\n\n"
        f'??? info "By class of failure"\n\n{_indented(_table("class", by_class.items()))}\n'
    )


def _table(what: str, rows: Iterable[tuple[str, list[Asked]]]) -> str:
    lines = [f"| {what} | number | right lab first | among the first three | covered |", "|---|---|---|---|---|"]
    for name, asked in rows:
        first, three, covered = (
            sum(values) / len(asked)
            for values in ([a.among(1) for a in asked], [a.among(3) for a in asked], [a.covered for a in asked])
        )
        lines.append(f"| {name} | {len(asked)} | {first:.0%} | {three:.0%} | {covered:.0%} |")
    return "\n".join(lines)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def main() -> None:
    catalog = Catalog.read(ROOT)
    before, _, rest = PAGE.read_text("utf-8").partition(MARKS[0])
    made = tables(list(held_out(catalog)), rejected(catalog))
    PAGE.write_text(before + MARKS[0] + made + MARKS[1] + rest.partition(MARKS[1])[2], "utf-8")


if __name__ == "__main__":
    main()
