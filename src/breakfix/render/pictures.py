"""Small pictures for the terminal, from the same [figure] of lab.toml as the site's: a line or two of blocks."""

import numpy as np
from rich.text import Text

from breakfix.catalog import Lab
from breakfix.evidence import Evidence

BLOCKS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "×"
WIDTH = 48


def picture(lab: Lab, broken: Evidence, fixed: Evidence) -> Text:
    """The lab's figure for both, on one scale, as text."""
    both = {"broken": series(lab, broken), "fixed": series(lab, fixed)}
    finite = np.concatenate([v[np.isfinite(v)] for v in both.values()])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    low = min(low, 0.0) if low > 0 and low < high / 4 else low
    text = Text()
    for name, values in both.items():
        text.append(f"  {name:<7}", "bold")
        text.append(blocks(values, low, high) + "\n", "red" if name == "broken" else "green")
    text.append(f"          {lab.figure.get('title', '')}; {_label(lab)} {low:.3g} to {high:.3g}", "dim")
    if NOT_FINITE in text.plain:
        text.append(f"; {NOT_FINITE} is not finite", "dim")
    return text


def series(lab: Lab, evidence: Evidence) -> np.ndarray:
    """The one row of numbers that stands for the lab's figure, at most WIDTH long."""
    kind, keys = lab.figure["kind"], lab.figure["series"]
    if kind == "bars" and np.ndim(evidence[keys[0]]) == 0:
        return np.array([float(evidence[k]) for k in keys])
    values = np.asarray(evidence[keys[0]], dtype=np.float64)
    if kind == "timeline":
        values = values[:, 1]
    return _thinned(values.ravel())


def blocks(values: np.ndarray, low: float, high: float) -> str:
    """One character per value, its height between `low` and `high`; × where a value is nan or infinite."""
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    wide = max(1, min(6, WIDTH // (2 * len(values)))) if len(values) else 1
    return "".join(
        (BLOCKS[round(np.clip((v - low) * scale, 0, len(BLOCKS) - 1))] if np.isfinite(v) else NOT_FINITE) * wide
        + (" " if wide > 2 else "")
        for v in values
    )


def _thinned(values: np.ndarray) -> np.ndarray:
    """At most WIDTH values: of each stretch its largest, or nan if it holds one, since peaks and faults are the point."""
    if len(values) <= WIDTH:
        return values
    return np.array([np.max(part) for part in np.array_split(values, WIDTH)])


def _label(lab: Lab) -> str:
    return (
        (lab.figure.get("labels") or [lab.figure.get("y", "")])[0]
        if lab.figure["kind"] != "bars"
        else lab.figure.get("y", "")
    )
