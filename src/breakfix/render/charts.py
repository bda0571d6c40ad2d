"""Charts of a class, as SVG that stands inside a page: in the colour of the text, nothing said by colour alone."""

from collections.abc import Callable
from functools import wraps

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from breakfix.render.figures import inline, to_svg
from breakfix.render.plots import COLOURS, STYLE, WIDTH
from breakfix.verdict import PASSED

HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "oo")


def _chart(build: Callable[..., tuple[Figure, str]]) -> Callable[..., str]:
    """Draws in the style of the labs' figures; the last argument is the title, which is said and not drawn."""

    @wraps(build)
    def drawn(*arguments) -> str:
        title = arguments[-1]
        with matplotlib.rc_context(STYLE | {"svg.hashsalt": title}):
            figure, words = build(*arguments)
            return inline(to_svg(figure), f"{title}. {words}.")

    return drawn


@_chart
def stacked(rows: dict[str, dict[str, int]], x: str, title: str) -> tuple[Figure, str]:
    """A lying bar for each row, cut into its parts; what passed comes first."""
    kinds = sorted({kind for row in rows.values() for kind in row}, key=lambda kind: (kind != PASSED, kind))
    figure = Figure(figsize=(WIDTH, 1.3 + 0.42 * len(rows)), layout="constrained")
    panel = figure.subplots()
    left = np.zeros(len(rows))
    for i, kind in enumerate(kinds):
        values = np.array([row.get(kind, 0) for row in rows.values()], dtype=float)
        look = {"fc": COLOURS[i % 4], "ec": "black", "lw": 0.6, "hatch": HATCHES[i % len(HATCHES)], "label": kind}
        panel.barh(range(len(rows)), values, 0.62, left=left, **look)
        left += values
    panel.set_yticks(range(len(rows)), list(rows))
    panel.invert_yaxis()
    panel.set_xlabel(x)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    words = "; ".join(f"{name}: {', '.join(f'{n} {kind}' for kind, n in row.items())}" for name, row in rows.items())
    return figure, words


@_chart
def bars(values: dict[str, float], x: str, title: str) -> tuple[Figure, str]:
    """A lying bar for each value, with its number."""
    figure = Figure(figsize=(WIDTH, 0.9 + 0.34 * len(values)), layout="constrained")
    panel = figure.subplots()
    drawn = panel.barh(range(len(values)), list(values.values()), 0.6, fc=COLOURS[1], ec="black", lw=0.6)
    panel.bar_label(drawn, [f"{value:g}" for value in values.values()], padding=4, fontsize=9)
    panel.set_yticks(range(len(values)), list(values))
    panel.invert_yaxis()
    panel.margins(x=0.12)
    panel.set_xlabel(x)
    return figure, "; ".join(f"{name}: {value:g}" for name, value in values.items())


@_chart
def histogram(values: list[float], most: float, x: str, title: str) -> tuple[Figure, str]:
    """How many lie in each tenth from 0 to `most`."""
    counts, edges = np.histogram(values, bins=10, range=(0, max(most, 1)))
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    panel = figure.subplots()
    panel.bar(edges[:-1], counts, np.diff(edges), align="edge", fc=COLOURS[0], ec="black", lw=0.6)
    panel.set_xlabel(x)
    panel.set_ylabel("students")
    panel.yaxis.get_major_locator().set_params(integer=True)
    words = "; ".join(f"{low:g} to {low + edges[1]:g}: {n}" for low, n in zip(edges, counts, strict=False) if n)
    return figure, words
