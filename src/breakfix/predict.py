"""Predictions: asked before the first run, and scored against the evidence of the starter where a key is named."""

import math
import re
from typing import Any

import numpy as np

from breakfix.catalog import Lab
from breakfix.evidence import Evidence


def right_choice(prediction: dict[str, Any], evidence: Evidence) -> str | None:
    """The choice that the evidence bears out; None where the prediction names no evidence.

    A number bears out the nearest choice, nan and inf the choice of that name, a string the choice that equals it.
    """
    key = prediction.get("evidence")
    if key is None or key not in evidence:
        return None
    value = evidence[key]
    value = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
    choices = [str(c) for c in prediction["choices"]]
    if isinstance(value, str):
        return next((c for c in choices if c.strip() == value.strip()), None)
    if isinstance(value, bool):
        return next((c for c in choices if c.lower() == ("yes" if value else "no")), None)
    return min(choices, key=lambda c: _distance(float(value), _number(c)), default=None)


def score(lab: Lab, answers: list[str | None], evidence: Evidence) -> list[tuple[str, str | None, str | None]]:
    """(question, answer, right choice) for each of the lab's predictions."""
    rights = [right_choice(p, evidence) for p in lab.predictions]
    return [(p["question"], a, r) for p, a, r in zip(lab.predictions, answers, rights, strict=False)]


def _number(choice: str) -> float:
    match = re.search(r"nan|[-+]?inf|[-+]?\d[\d ]*(\.\d+)?(e[-+]?\d+)?", choice.lower())
    return float(match.group().replace(" ", "")) if match else math.nan


def _distance(value: float, choice: float) -> float:
    if math.isnan(value) or math.isnan(choice):
        return 0.0 if math.isnan(value) and math.isnan(choice) else math.inf
    return 0.0 if value == choice else abs(value - choice)
