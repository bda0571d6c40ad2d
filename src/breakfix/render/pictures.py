"""Small pictures for the terminal, from the same [figure] of lab.toml as the site's: a few lines of blocks."""

from collections.abc import Iterator

import numpy as np
from rich.text import Text

from breakfix.catalog import Lab
from breakfix.evidence import Evidence
from breakfix.render.terminal import number

BLOCKS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "×"
WIDTH, BAR = 48, 30  # characters of a line of blocks, and of the longest bar
MOST_BARS, MOST_ROWS, MOST_COLUMNS = 6, 8, 12  # of bars and of a matrix; larger ones become one line of blocks
COLOURS = {"broken": "red", "fixed": "green"}

Line = list[tuple[str, str]]  # pieces of text with their styles
Sides = dict[str, np.ndarray]  # "broken" and "fixed"


def picture(lab: Lab, broken: Evidence, fixed: Evidence) -> Text:
    """The lab's figure for both, on one scale. What a side's evidence lacks shows as `not measured`."""
    sides = {"broken": values_of(lab, broken), "fixed": values_of(lab, fixed)}
    low, high = _scale(lab, sides)
    lines = [_title(lab, low, high), *_draw(lab, sides, low, high)]
    if any(NOT_FINITE in piece for line in lines for piece, _ in line):
        lines[0].append((f"; {NOT_FINITE} is not finite", "dim"))
    return Text("\n").join(Text.assemble(*line) for line in lines)


def values_of(lab: Lab, evidence: Evidence) -> np.ndarray:
    """The numbers that stand for the lab's figure: of bars all, else the first series; none where one is missing."""
    kind, keys = lab.figure["kind"], lab.figure["series"]
    if any(evidence.get(key) is None for key in keys):
        return np.zeros(0)
    try:
        found = [np.asarray(evidence[key], dtype=np.float64) for key in keys]
    except (TypeError, ValueError):  # text, or rows of different lengths
        return np.zeros(0)
    if kind == "bars" and all(v.ndim == 0 for v in found):
        return np.array(found)
    first = np.atleast_1d(found[0])
    return first[:, 1] if kind == "timeline" and first.ndim == 2 and first.shape[1] == 2 else first


def blocks(values: np.ndarray, low: float, high: float) -> str:
    """One character per value, its height between `low` and `high`; × where a value is nan or infinite."""
    return "".join(_block(v, low, high) for v in values)


def _block(value: float, low: float, high: float) -> str:
    if not np.isfinite(value):
        return NOT_FINITE
    return BLOCKS[round(_share(value, low, high) * (len(BLOCKS) - 1))]


def _share(value: float, low: float, high: float) -> float:
    """Where `value` lies between `low` (0) and `high` (1)."""
    room = high / 2 - low / 2  # halves, since high - low may exceed the largest float
    return float(np.clip((value / 2 - low / 2) / room, 0, 1)) if room > 0 else 0.0


def _scale(lab: Lab, sides: Sides) -> tuple[float, float]:
    """(lowest, highest) finite value of both sides; from zero where zero is near, as for counts and bytes."""
    values = np.concatenate([v.ravel() for v in sides.values()])
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    near_zero = low > 0 and (low < high / 4 or low == high or lab.figure["kind"] == "bars")
    return (0.0 if near_zero and not lab.figure.get("log") else low), high


def _title(lab: Lab, low: float, high: float) -> Line:
    labels, kind = lab.figure.get("labels") or [""], lab.figure["kind"]
    what = lab.figure.get("y", "") if kind == "bars" else labels[0] or lab.figure.get("y", "")
    span = "" if kind == "bars" else f"{number(low)} to {number(high)}"
    about = " ".join(word for word in (what, span, "(log)" if lab.figure.get("log") else "") if word)
    return [("; ".join(part for part in (lab.figure.get("title", ""), about) if part), "dim")]


def _draw(lab: Lab, sides: Sides, low: float, high: float) -> Iterator[Line]:
    shapes = {v.shape for v in sides.values()}
    if lab.figure["kind"] == "bars" and len(shapes) == 1 and 1 <= next(iter(sides.values())).size <= MOST_BARS:
        yield from _bars(lab, sides, low, high)
    elif lab.figure["kind"] == "matrix" and all(_is_small_matrix(v) for v in sides.values()):
        yield from _matrices(sides, low, high)
    else:
        yield from _rows(lab, sides, low, high)


def _rows(lab: Lab, sides: Sides, low: float, high: float) -> Iterator[Line]:
    """One line of blocks per side."""
    if lab.figure.get("log"):
        floor = _least_positive(sides)  # a logarithmic scale has no zero
        low, high = (float(np.log10(max(v, floor))) for v in (low, high))
        sides = {side: _log10(values, floor) for side, values in sides.items()}
    for side, values in sides.items():
        row = blocks(_fitted(values.ravel()), low, high) if values.size else "not measured"
        yield [(f"{side:<7} ", "bold"), (row, COLOURS[side] if values.size else "dim")]


def _bars(lab: Lab, sides: Sides, low: float, high: float) -> Iterator[Line]:
    """A bar for every value, broken above fixed."""
    count = next(iter(sides.values())).size
    names = (list(lab.figure.get("labels") or lab.figure["series"]) + [""] * count)[:count]
    wide = min(24, max(map(len, names))) + 2
    for i, name in enumerate(names):
        for side, values in sides.items():
            value = float(values.ravel()[i])
            bar = "█" * round(_share(value, min(low, 0.0), high) * BAR) if np.isfinite(value) else NOT_FINITE
            head = name[:24] if side == "broken" else ""
            yield [(f"{head:<{wide}}", ""), (f"{side:<7} ", "bold"), (f"{bar} ", COLOURS[side]), (number(value), "")]


def _matrices(sides: Sides, low: float, high: float) -> Iterator[Line]:
    """Both matrices side by side, two characters per cell."""
    widths = {side: max(2 * values.shape[1], len(side)) + 3 for side, values in sides.items()}
    yield [(f"{side:<{widths[side]}}", "bold") for side in sides]
    for i in range(max(len(v) for v in sides.values())):
        rows = {side: values[i] if i < len(values) else np.zeros(0) for side, values in sides.items()}
        cells = {side: "".join(2 * c for c in blocks(row, low, high)) for side, row in rows.items()}
        yield [(f"{cells[side]:<{widths[side]}}", COLOURS[side]) for side in sides]


def _is_small_matrix(values: np.ndarray) -> bool:
    return values.ndim == 2 and 0 < values.shape[0] <= MOST_ROWS and 0 < values.shape[1] <= MOST_COLUMNS


def _least_positive(sides: Sides) -> float:
    values = np.concatenate([v.ravel() for v in sides.values()])
    positive = values[(values > 0) & np.isfinite(values)]
    return float(positive.min()) if positive.size else 1.0


def _log10(values: np.ndarray, floor: float) -> np.ndarray:
    """The logarithm of what is finite, at least that of `floor`; nan for the rest."""
    finite = np.isfinite(values)
    return np.where(finite, np.log10(np.where(finite, np.maximum(values, floor), floor)), np.nan)


def _fitted(values: np.ndarray) -> np.ndarray:
    """At most WIDTH values: of each stretch its largest, or nan if it holds one; few values are repeated.

    Peaks and faults are the point of these pictures, so neither may get lost.
    """
    if len(values) <= WIDTH:
        return np.repeat(values, min(4, WIDTH // len(values)))
    parts = np.array_split(values, WIDTH)
    return np.array([part.max() if np.isfinite(part).all() else np.nan for part in parts])
