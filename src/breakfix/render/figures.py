"""A lab's figure as SVG: broken beside fixed, drawn from their evidence as [figure] of lab.toml says.

The SVG is meant to stand inside a page: transparent, in the colour of the text around it, its words selectable, its
bytes the same for the same evidence. What the kinds look like is in breakfix.render.plots.
"""

import html
import io
import re
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from breakfix.catalog import Lab
from breakfix.evidence import Evidence
from breakfix.render.plots import KINDS, STYLE, Sides, Spec, series
from breakfix.render.terminal import number


def draw(lab: Lab, broken: Evidence, fixed: Evidence, names: tuple[str, str] = ("broken", "fixed")) -> str:
    """The lab's figure as one <svg> element; `names` are those of the two sides.

    A key that a side's evidence lacks shows as `not measured`.
    """
    spec, sides = lab.figure, dict(zip(names, (broken, fixed), strict=True))
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": lab.id}):
        svg = to_svg(KINDS[spec["kind"]](spec, sides))
    return inline(svg, alternative(spec, sides))


def alternative(spec: Spec, sides: Sides) -> str:
    """The figure in words, for who cannot see it: the range of every series and how much of it is not finite."""
    words = [
        f"{label}, {side}: {_range(evidence.get(key), spec['kind'])}"
        for side, evidence in sides.items()
        for key, label in series(spec)
    ]
    return f"{spec.get('title', 'Figure')}, {' beside '.join(sides)}. {'; '.join(words)}."


def to_svg(figure: Figure) -> str:
    """The same bytes for the same figure."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def inline(svg: str, words: str) -> str:
    """Without prolog, metadata and style sheet; black as the colour of the text around it; with its words."""
    svg = re.sub(r"\s*<metadata>.*?</metadata>|\s*<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = svg.replace("#000000", "currentColor").replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'")
    label = html.escape(words, quote=True)
    start = f'<svg class="lab-figure" role="img" aria-label="{label}" fill="currentColor" stroke-linejoin="round" '
    return svg.replace("<svg ", start, 1).strip()


def _range(value: Any, kind: str) -> str:
    if value is None:
        return "not measured"
    array = np.asarray(value, dtype=np.float64)
    array = array[..., 1].ravel() if kind == "timeline" else array.ravel()
    finite = array[np.isfinite(array)]
    words = f"{number(float(finite.min()))} to {number(float(finite.max()))}" if finite.size else "no finite value"
    lost = array.size - finite.size
    return words + (f", {lost} of {array.size} not finite" if lost else "")
