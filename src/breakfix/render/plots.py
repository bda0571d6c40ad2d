"""The kinds of figure that a lab.toml can ask for: curve, timeline, bars, matrix. Each shows broken beside fixed.

Colour carries nothing alone: lines differ by dash and marker, bars by hatch, the cells of a matrix hold their numbers.
A value that is nan or inf is a cross, never a silent gap.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from breakfix.evidence import Evidence
from breakfix.render.terminal import number

WIDTH, HEIGHT = 7.6, 3.3  # inches
MOST_POINTS = 300  # of one line: more only makes the page heavier
# Each readable on white and on the dark page (contrast of 3:1 or more with both).
COLOURS, DASHES, MARKERS = ("#2878c8", "#c2571a", "#2e8b57", "#a05bc4"), ("-", "--", "-.", ":"), ("o", "s", "^", "D")
LOOKS = ("#c2571a", "////"), ("#2878c8", "")  # colour and hatch of the two sides
BOUND = {"color": "black", "linestyle": (0, (1, 1.5)), "linewidth": 1.4}
STYLE = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.ymargin": 0.14,  # the crosses stand at the foot, below the lines
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
}

Sides = Mapping[str, Evidence]  # two, by their names: "broken" and "fixed"
Spec = Mapping[str, Any]  # [figure] of lab.toml


# ------------------------------------------------------------------------------------------------------ curve, timeline


def _curves(spec: Spec, sides: Sides) -> Figure:
    """One panel per side, on the same axes; a timeline holds its value until the next point."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for panel, (side, evidence) in zip(panels, sides.items(), strict=True):
        if spec.get("log"):
            panel.set_yscale("log", nonpositive="mask")
        lines = {label: _points(evidence.get(key), spec["kind"]) for key, label in series(spec)}
        for i, (label, points) in enumerate(lines.items()):
            _line(panel, i, label, *_thin(*points), steps=spec["kind"] == "timeline")
        panel.set_title(side + _lost(lines.values()))
        _label(panel, spec.get("x", ""), spec.get("y", "") if panel is panels[0] else "")
        _bound(panel.axhline, spec, evidence)
    _legend(figure, spec, crosses=any(":" in panel.get_title() for panel in panels))
    return figure


def _line(panel: Axes, i: int, label: str, x: np.ndarray, y: np.ndarray, steps: bool) -> None:
    """One series in the style of the i-th, its gaps marked by crosses in the i-th row from the foot."""
    if not len(y):
        panel.text(0.98, 0.92 - 0.1 * i, f"{label} was not measured", transform=panel.transAxes, ha="right")
        return
    fine = np.isfinite(y)
    style = {"drawstyle": "steps-post"} if steps else {}
    panel.plot(x, np.where(fine, y, np.nan), **_look(i), **style, markevery=max(1, len(x) // 20))
    if not fine.all():
        foot, height = panel.get_xaxis_transform(), 0.04 + 0.06 * i  # x in data, y from 0 at the foot to 1 at the top
        panel.plot(x[~fine], np.full((~fine).sum(), height), "x", color="black", ms=5, mew=1.4, transform=foot)


def _lost(lines: Iterable[tuple[np.ndarray, np.ndarray]]) -> str:
    """How many of a panel's values are not finite, if any."""
    values = np.concatenate([y for _, y in lines])
    bad, there = int((~np.isfinite(values)).sum()), len(values)
    return f": {bad} of {there} values not finite" if bad else ""


def _look(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % 4], "linestyle": DASHES[i % 4], "marker": MARKERS[i % 4]}


def _points(value: Any, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """x and y of a series, none if it was not measured: a timeline brings both, a curve counts from 0."""
    array = np.asarray([] if value is None else value, dtype=np.float64)
    if kind == "timeline":
        array = array.reshape(-1, 2)
        return array[:, 0], array[:, 1]
    return np.arange(array.size), array.reshape(-1)


def _thin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most about MOST_POINTS points: of each stretch the lowest and highest, and every one that is not finite."""
    if len(y) <= MOST_POINTS:
        return x, y
    stretches = np.array_split(np.arange(len(y)), MOST_POINTS // 2)
    finite = np.nan_to_num(y)
    kept = {int(s[pick(finite[s])]) for s in stretches for pick in (np.argmin, np.argmax)} | {0, len(y) - 1}
    index = sorted(kept.union(np.flatnonzero(~np.isfinite(y)).tolist()))
    return x[index], y[index]


# ----------------------------------------------------------------------------------------------------------------- bars


def _bars(spec: Spec, sides: Sides) -> Figure:
    """Two bars per label, lying, so that any label has room; each with its number."""
    labels = _bar_labels(spec, sides)
    figure = Figure(figsize=(WIDTH, 1.1 + 0.55 * len(labels)), layout="constrained")
    panel = figure.subplots()
    if spec.get("log"):
        panel.set_xscale("log")
    for i, evidence in enumerate(sides.values()):
        where = np.arange(len(labels)) + 0.4 * i - 0.2
        _bars_of(panel, where, _bar_values(spec, evidence), LOOKS[i], spec.get("log", False))
    panel.set_yticks(np.arange(len(labels)), labels)
    panel.invert_yaxis()
    panel.margins(x=0.15)  # room for the numbers
    _label(panel, spec.get("y", ""), spec.get("x", ""))
    _bound(panel.axvline, spec, *sides.values())
    handles = [*map(_patch, sides, LOOKS), *_bound_handles(spec)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _bars_of(panel: Axes, where: np.ndarray, values: np.ndarray, look: tuple[str, str], log: bool) -> None:
    shown = np.isfinite(values) & ((values > 0) | (not log))
    panel.barh(where[: len(values)][shown], values[shown], 0.36, fc=look[0], ec="black", lw=0.8, hatch=look[1])
    for y, value, bar in zip(where, values, shown, strict=False):
        foot = panel.transData if bar else panel.get_yaxis_transform()  # without a bar its number stands at the axis
        text = number(float(value)) if np.isfinite(value) else f"× {value}"
        at = (value if bar else 0, y)
        panel.annotate(text, at, (4, 0), foot, textcoords="offset points", va="center", fontsize=9)


def _bar_values(spec: Spec, evidence: Evidence) -> np.ndarray:
    """The bars of one side: numbers of several keys, or the one array; nan where it was not measured."""
    found = [np.ravel(np.asarray(evidence.get(key, np.nan), dtype=np.float64)) for key in spec["series"]]
    return np.concatenate(found)


def _bar_labels(spec: Spec, sides: Sides) -> list[str]:
    longest = max(len(_bar_values(spec, evidence)) for evidence in sides.values())
    labels = list(map(str, spec.get("labels", spec["series"])))[:longest]
    return labels + [str(i) for i in range(len(labels), longest)]


def _patch(side: str, look: tuple[str, str]) -> Rectangle:
    colour, hatch = look
    return Rectangle((0, 0), 1, 1, facecolor=colour, edgecolor="black", linewidth=0.8, hatch=hatch, label=side)


# --------------------------------------------------------------------------------------------------------------- matrix


def _matrix(spec: Spec, sides: Sides) -> Figure:
    """One panel per side, on one scale; every cell holds its number."""
    arrays = {side: _cells(evidence.get(spec["series"][0])) for side, evidence in sides.items()}
    rows = max(len(a) for a in arrays.values())
    figure = Figure(figsize=(WIDTH, 1.2 + 0.36 * max(rows, 4)), layout="constrained")
    finite = np.concatenate([a[np.isfinite(a)] for a in arrays.values()] + [np.zeros(1)])
    scale = (finite.min(), max(finite.max(), finite.min() + 1e-12))
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for panel, (side, array) in zip(panels, arrays.items(), strict=True):
        _grid(panel, array, scale)
        panel.set_title(side)
        _label(panel, spec.get("x", ""), spec.get("y", "") if panel is panels[0] else "")
    panels[0].invert_yaxis()
    return figure


def _cells(value: Any) -> np.ndarray:
    return np.full((1, 1), np.nan) if value is None else np.atleast_2d(np.asarray(value, dtype=np.float64))


def _grid(panel: Axes, array: np.ndarray, scale: tuple[float, float]) -> None:
    low, high = scale
    for (row, column), value in np.ndenumerate(array):
        share = (value - low) / (high - low) if np.isfinite(value) else 0.0
        _cell(panel, row, column, value, 0.75 * share)
    rows, columns = array.shape
    panel.set(xlim=(-0.5, columns - 0.5), ylim=(-0.5, rows - 0.5), xticks=range(columns), yticks=range(rows))


def _cell(panel: Axes, row: int, column: int, value: float, share: float) -> None:
    """A square that is stronger the larger its value; hatched and crossed where it is no finite number."""
    hatch = "" if np.isfinite(value) else "/"
    corner = (column - 0.5, row - 0.5)
    panel.add_patch(Rectangle(corner, 1, 1, fc=(LOOKS[1][0], share), ec="black", lw=0.5, hatch=hatch))
    text, weight = (f"{value + 0.0:.2g}", "normal") if np.isfinite(value) else (f"× {value}", "bold")
    panel.text(column, row, text, ha="center", va="center", fontsize=8, weight=weight)


# ------------------------------------------------------------------------------------------------------- for all kinds


def series(spec: Spec) -> list[tuple[str, str]]:
    """(evidence key, label) of every series."""
    keys = spec["series"]
    labels = spec.get("labels") or keys
    return list(zip(keys, labels if len(labels) == len(keys) else keys, strict=True))


def _bound(rule: Callable[..., Any], spec: Spec, *evidence: Evidence) -> None:
    """A line at the bound, if [figure] names one that was measured."""
    values = [side[spec["bound"]] for side in evidence if spec.get("bound") in side]
    for value in values[:1]:
        rule(float(value), **BOUND)


def _bound_handles(spec: Spec) -> list[Line2D]:
    return [Line2D([], [], **BOUND, label="bound")] if "bound" in spec else []


def _label(panel: Axes, x: str, y: str) -> None:
    panel.set_xlabel(x)
    panel.set_ylabel(y)


def _legend(figure: Figure, spec: Spec, crosses: bool) -> None:
    handles = [Line2D([], [], **_look(i), label=label) for i, (_, label) in enumerate(series(spec))]
    handles += _bound_handles(spec)
    if crosses:
        handles.append(Line2D([], [], color="black", marker="x", linestyle="", ms=6, mew=1.5, label="nan or inf"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)


KINDS: dict[str, Callable[[Spec, Sides], Figure]] = {
    "curve": _curves,
    "timeline": _curves,
    "bars": _bars,
    "matrix": _matrix,
}
