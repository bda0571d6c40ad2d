"""Predictions: asked before the first run, and scored against the evidence of the starter where a key is named."""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from breakfix.catalog import Lab
from breakfix.evidence import Evidence

NUMBER = re.compile(
    r"(?<![\w.])[-+]?"
    r"(?:(?:\d{1,3}(?:[ ,_]\d{3})+(?!\d)|\d+)(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?"  # 2 000 and 2,000 are one number
    r"|[-+]?\binf(?:init[ey])?\b|\bnan\b"
)


@dataclass(frozen=True)
class Scored:
    """One prediction: the choice that the learner took, and the one that the evidence bears out."""

    question: str
    answer: str
    right: str


def score(lab: Lab, answers: Sequence[str | None], evidence: Evidence) -> list[Scored]:
    """Every prediction that was made and that the evidence of the starter decides."""
    pairs = zip(lab.predictions, answers, strict=False)  # fewer answers: the lab has more questions than it had then
    decided = [(p["question"], answer, right_choice(p, evidence)) for p, answer in pairs if answer is not None]
    return [Scored(question, answer, right) for question, answer, right in decided if right is not None]


def right_choice(prediction: dict[str, Any], evidence: Evidence) -> str | None:
    """The choice that the evidence bears out; None where it decides nothing.

    A number bears out the nearest choice, nan and inf the choice of that name, a string the choice that equals it.
    """
    value = evidence.get(prediction.get("evidence", ""))
    value = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
    choices = [str(c) for c in prediction["choices"]]
    if isinstance(value, bool):
        return _first(choices, ("yes", "true") if value else ("no", "false"))
    if isinstance(value, str):
        return _first(choices, (value.strip().lower(),))
    if not isinstance(value, int | float) or not choices:
        return None
    if abs(value) > sys.float_info.max:  # as an int may
        value = math.inf if value > 0 else -math.inf
    nearest = min(choices, key=lambda c: _distance(value, number_in(c)))
    return nearest if _distance(value, number_in(nearest)) < math.inf else None


def number_in(choice: str) -> float | None:
    """The first number that a choice names, as in "about 2 000", "nan" or "-inf per step"."""
    match = NUMBER.search(choice.lower().replace("−", "-"))
    if not match:
        return None
    word = re.sub(r"[ ,_]", "", match.group())
    return float(re.sub(r"inf\w*", "inf", word))


def _first(choices: list[str], words: tuple[str, ...]) -> str | None:
    return next((c for c in choices if c.strip().lower() in words), None)


def _distance(value: float, choice: float | None) -> float:
    """How far a choice is off; infinite where one is a number and the other is none."""
    if choice is None or math.isnan(value) or math.isnan(choice):
        return 0.0 if choice is not None and math.isnan(value) and math.isnan(choice) else math.inf
    return 0.0 if value == choice else abs(value - choice)
