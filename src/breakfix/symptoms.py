"""From an error message or a complaint to the labs that answer it, by how rare the words are that agree."""

import math
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

from breakfix.catalog import Catalog, Lab

LEAST = 0.3  # below this score no lab answers
# What differs from run to run and from machine to machine: frames, paths, addresses, counts.
NOISE = re.compile(
    r'Traceback \(most recent call last\)|File "[^"\n]*", line \d+(, in \S+)?'
    r"|(?:[A-Za-z]:)?(?:[A-Za-z0-9_.~<>-]*[/\\]){2,}[A-Za-z0-9_.~-]*|0x[0-9A-Fa-f]+|\d+"
)
SAY_NOTHING = {  # about what is wrong
    "a", "an", "the", "and", "or", "but", "if", "then", "it", "its", "i", "my", "we", "our", "you", "this", "that",
    "there", "is", "are", "was", "be", "been", "has", "have", "had", "do", "does", "did", "no", "not", "so", "as",
    "than", "in", "on", "at", "of", "to", "by", "for", "from", "with", "error", "exception",
}  # fmt: skip


@dataclass(frozen=True)
class Match:
    """A lab that answers a text, the symptom of it that fits best, and how well (0 to 1)."""

    lab: Lab
    symptom: str
    score: float


def find(text: str, catalog: Catalog, most: int = 5) -> list[Match]:
    """The labs whose symptoms fit `text`, best first; none if nothing fits."""
    said, weights = set(tokens(text)), _weights(catalog)
    found = []
    for lab in catalog:
        fit, symptom = max((_fit(set(tokens(s)), said, weights), s) for s in lab.symptoms)
        found.append((fit, Match(lab, symptom, fit[0])))
    found.sort(key=lambda f: f[0], reverse=True)  # a stable sort: of equals the lab that comes first in the catalog
    return [match for _, match in found if match.score >= LEAST][:most]


def tokens(text: str) -> list[str]:
    """Words in lower case, of OutOfMemoryError its parts too; Chinese, which has no blanks, as pairs of characters."""
    text = NOISE.sub(" ", unicodedata.normalize("NFKC", text))
    found = []
    for word in re.findall(r"[A-Za-z_]+", text):
        parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", word) if not word.islower() and "_" not in word else []
        found += {part.strip("_").lower() for part in (word, *parts)} - SAY_NOTHING - {""}
    runs = re.findall(r"[\u3400-\u9fff]+", text)
    return found + [run[i : i + 2] for run in runs for i in range(max(1, len(run) - 1))]


def _weights(catalog: Catalog) -> dict[str, float]:
    """Inverse document frequency over the labs: a word that every lab uses tells nothing."""
    labs = list(catalog)
    count = Counter(token for lab in labs for token in {t for s in lab.symptoms for t in tokens(s)})
    return {token: math.log(1 + len(labs) / n) for token, n in count.items()} | {"": math.log(1 + len(labs))}


def _fit(wanted: set[str], said: set[str], weights: dict[str, float]) -> tuple[float, float]:
    """(score, share of the symptom that was said).

    Either much of the symptom was said, as in a pasted traceback, or most of what was said is in the symptom, as in one
    or two words; and the more words agree, the less it is by chance.
    """
    rare = weights[""]  # what a word weighs that no lab knows
    agreed = sum(weights[t] for t in wanted & said)
    if not agreed:
        return 0.0, 0.0
    of_symptom, of_text = (agreed / sum(weights.get(t, rare) for t in words) for words in (wanted, said))
    share = max(of_symptom, of_text if of_text > 0.5 else 0.0)
    return share * (1 - 0.5 ** len(wanted & said)), of_symptom
