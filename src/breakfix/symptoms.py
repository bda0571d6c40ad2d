"""From an error message or a complaint to the labs that answer it: what people say, weighed by how rare its words are."""

import math
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

from breakfix.catalog import Catalog, Lab

LEAST = 0.3  # of a symptom's weight must be in the text, or no lab answers it
NOISE = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?|['\"`]")  # addresses and counts differ from run to run


@dataclass(frozen=True)
class Match:
    """A lab that answers a text, the symptom of it that fits best, and how well (0 to 1)."""

    lab: Lab
    symptom: str
    score: float


def find(text: str, catalog: Catalog, most: int = 5) -> list[Match]:
    """The labs whose symptoms fit `text`, best first; none if nothing fits."""
    said = set(tokens(text))
    weights = _weights(catalog)
    best = [
        max((Match(lab, s, _fit(s, said, weights)) for s in lab.symptoms), key=lambda m: m.score) for lab in catalog
    ]
    return sorted((m for m in best if m.score >= LEAST), key=lambda m: (-m.score, m.lab.id))[:most]


def tokens(text: str) -> list[str]:
    """Words in lower case without numbers; Chinese, which has no blanks, as pairs of characters."""
    text = NOISE.sub(" ", unicodedata.normalize("NFKC", text).lower())
    words = re.findall(r"[a-z_][a-z_.]*[a-z_]|[a-z]", text)
    runs = re.findall(r"[\u4e00-\u9fff]+", text)
    return words + [run[i : i + 2] for run in runs for i in range(max(1, len(run) - 1))]


def _weights(catalog: Catalog) -> dict[str, float]:
    """Inverse document frequency over the labs: a word that every lab uses tells nothing."""
    labs = list(catalog)
    count = Counter(token for lab in labs for token in {t for s in lab.symptoms for t in tokens(s)})
    return {token: math.log(1 + len(labs) / n) for token, n in count.items()}


def _fit(symptom: str, said: set[str], weights: dict[str, float]) -> float:
    """The share of the symptom's weight that was said, and, so that long symptoms can win, a little for how much."""
    wanted = set(tokens(symptom))
    total = sum(weights[t] for t in wanted)
    found = sum(weights[t] for t in wanted & said)
    return found / total * (1 - 0.5 ** len(wanted & said)) if total else 0.0
