"""From an error message or a complaint to the labs that answer it, by a linear model over pieces of words.

It learns, in about a second, from the symptoms in the labs' own lab.toml and from complaints.toml: ridge regression to
one value per lab, 1 for its own texts and 0 for all others. What is left of it is a table, piece of a word to a weight
for each lab, that is kept in the user's cache and that the site's search reads too (docs/assets/symptoms.js).
"""

import json
import math
import os
import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from breakfix.cache import digest, user_cache
from breakfix.catalog import Catalog, Lab

ELSEWHERE = "elsewhere"  # complaints.toml's texts that no lab is about
LEAST = 0.21  # below this score no lab answers
RIDGE, CENTRE, LEVELS = (
    1.0,
    0.3,
    28,
)  # penalty; share of a lab's mean text in its weights; steps that a weight is kept in
LONGEST = 20_000  # characters of a text that are looked at: an error message stands at the end
FRAMES = 3  # of a traceback
# docs/assets/symptoms.js has the same expressions: hence ASCII, and no `\s`.
EXCEPTION = re.compile(
    r"^[\w.]*(?:Error|Exception|Warning|Exit|Interrupt|Failed|Unsupported)\b", re.MULTILINE | re.ASCII
)
FRAME = re.compile(
    r'^[ \t]*File "(?:[^"\n]*[/\\])?([^"\n]*?)(?:\.py)?", line \d+(?:, in ([\w.<>]+))?', re.MULTILINE | re.ASCII
)
# What differs from run to run and from machine to machine: paths, addresses, counts.
NOISE = re.compile(r"(?:[A-Za-z]:)?(?:[\w.~<>-]*[/\\]){2,}[\w.~-]*|0x[0-9A-Fa-f]+", re.ASCII)
VERSION = re.compile(r"\bv?\d+\.\d+\.\d+[\w.+-]*", re.ASCII)
CHINESE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]+")


@dataclass(frozen=True)
class Match:
    """A lab, its score (about 1 for a text of its own), the words that speak for it, and its nearest own symptom."""

    lab: Lab
    score: float
    words: tuple[str, ...]
    symptom: str

    @property
    def probe(self) -> str:
        """The instrument in `breakfix.probes` that the lab's explanation takes to other people's code, or ""."""
        found = Counter(re.findall(r"breakfix\.probes\.(\w+)", _read(self.lab.solution_path / "README.md")))
        return f"breakfix.probes.{found.most_common(1)[0][0]}" if found else ""


@dataclass(frozen=True)
class Answer:
    """The labs that are nearest to a text, best first, and whether any of them is near enough to answer it."""

    matches: tuple[Match, ...]
    covered: bool


def find(text: str, catalog: Catalog, most: int = 3) -> Answer:
    """The labs nearest to `text`: a message, a whole traceback or a complaint, in English or Chinese."""
    labs = {lab.path.name: lab for lab in catalog}
    index = Index.of(catalog)
    ranked, covered = index.ranked(text)
    return Answer(tuple(_match(labs[name], score, text, index) for name, score in ranked[:most]), covered)


def _match(lab: Lab, score: float, text: str, index: "Index") -> Match:
    said = index.vector(text)
    nearest = max(lab.symptoms, key=lambda symptom: dot(said, index.vector(symptom)))
    return Match(lab, score, index.words(text, lab.path.name), nearest)


# --------------------------------------------------------------------------------------------------- pieces of a text


def readable(text: str) -> str:
    """`text` without what differs from run to run; of a traceback its last frames' names and its message, twice."""
    text = re.sub("[\r\u2028\u2029]", "\n", unicodedata.normalize("NFKC", text[-LONGEST:]))
    if (frames := list(FRAME.finditer(text))) and (message := EXCEPTION.search(text, frames[-1].end())):
        last = " ".join(f"{frame[1]} {frame[2] or ''}" for frame in frames[-FRAMES:])
        text = (
            f"{last}\n{text[frames[-1].end() : message.start()]}\n{text[message.start() :]}\n{text[message.start() :]}"
        )
    text = VERSION.sub(" versionnumber ", NOISE.sub(" ", text))
    return re.sub(r"[0-9_]+", " ", re.sub(r"([a-z])([A-Z])", r"\1 \2", text)).lower()


def words(text: str) -> list[str]:
    """The words of a readable text; Chinese, which has no blanks, as pairs of characters."""
    runs = CHINESE.findall(text)
    return re.findall(r"[a-z]+", text) + [run[i : i + 2] for run in runs for i in range(max(1, len(run) - 1))]


def pieces(word: str) -> list[str]:
    """A word's runs of four characters, blanks at its ends among them: most of them outlive an inflection."""
    if CHINESE.match(word):
        return [word]
    padded = f" {word} "
    return [padded[i : i + 4] for i in range(max(1, len(padded) - 3))]


def grams(text: str) -> Counter:
    """How often each piece and each pair of neighbouring English words is in `text`."""
    said = words(readable(text))
    english = [word for word in said if not CHINESE.match(word)]
    pairs = (f"{a}+{b}" for a, b in pairwise(english))
    return Counter([*(piece for word in said for piece in pieces(word)), *pairs])


# ---------------------------------------------------------------------------------------------------------- the model


@dataclass(frozen=True)
class Index:
    """What was learnt: of each gram how rare it is and its weight for each label, and each label's share of texts."""

    labels: list[str]
    shares: list[float]
    step: float  # what one level of a weight is worth
    grams: dict[str, str]  # rarity in thousandths, then a character for the label and one for the level, and so on

    @classmethod
    def of(cls, catalog: Catalog) -> "Index":
        """The index of these labs, from the cache if it was made before."""
        return _kept(tuple(texts_of(catalog)))

    def vector(self, text: str) -> dict[str, float]:
        """The grams of `text` that are known, by how often they are there and how rare they are; of length 1."""
        found = {g: (1 + math.log(n)) * self.rarity(g) for g, n in grams(text).items() if g in self.grams}
        length = math.sqrt(sum(value * value for value in found.values()))
        return {gram: value / length for gram, value in found.items()}

    def rarity(self, gram: str) -> float:
        """The inverse document frequency."""
        return int(self.grams[gram].partition(" ")[0]) / 1000

    def weights(self, gram: str) -> Iterator[tuple[str, float]]:
        """The labels for or against which a gram speaks, and how much."""
        coded = self.grams[gram].partition(" ")[2]
        for label, level in zip(coded[::2], coded[1::2], strict=True):
            yield self.labels[ord(label) - ord("0")], (ord(level) - ord("P")) * self.step

    def scores(self, text: str) -> dict[str, float]:
        """How near `text` is to each label; nothing if no gram of it is known."""
        said = self.vector(text)
        found = dict(zip(self.labels, self.shares, strict=True)) if said else {}
        for gram, value in said.items():
            for label, weight in self.weights(gram):
                found[label] += value * weight
        return found

    def ranked(self, text: str) -> tuple[list[tuple[str, float]], bool]:
        """The labs with their scores, best first, and whether the first is near enough to answer `text`."""
        scores = self.scores(text)
        elsewhere = scores.pop(ELSEWHERE, 0.0)
        best = sorted(scores.items(), key=lambda found: (-found[1], found[0]))
        return best, bool(best) and best[0][1] >= max(LEAST, elsewhere)

    def words(self, text: str, label: str, most: int = 4) -> tuple[str, ...]:
        """The words of `text` that speak most for `label`."""
        said, found = self.vector(text), {}
        for word in dict.fromkeys(words(readable(text))):
            known = [(said[piece], dict(self.weights(piece))) for piece in pieces(word) if piece in said]
            found[word] = sum(value * weights.get(label, 0.0) for value, weights in known)
        best = sorted(found, key=lambda word: -found[word])[:most]
        return tuple(word for word in best if found[word] > 0)

    def to_json(self) -> dict:
        return {"labels": self.labels, "shares": self.shares, "step": self.step, "grams": self.grams}


def dot(a: dict[str, float], b: dict[str, float]) -> float:
    """How alike two vectors of `Index.vector` are, 0 to 1."""
    return sum(value * b.get(gram, 0.0) for gram, value in a.items())


def texts_of(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """(label, text): the labs' own symptoms, what else people write, and what no lab is about."""
    known = {lab.path.name: lab.symptoms for lab in catalog}
    for name, symptoms in known.items():
        yield from ((name, symptom) for symptom in symptoms)
    if known:
        more = tomllib.loads((Path(__file__).parent / "complaints.toml").read_text("utf-8"))
        for name in more.keys() & {*known, ELSEWHERE}:
            yield from ((name, line) for line in more[name].splitlines() if line)


@lru_cache(maxsize=8)
def _kept(texts: tuple[tuple[str, str], ...]) -> Index:
    texts = tuple(sorted(texts))
    name = digest(Path(__file__).read_bytes(), json.dumps(texts).encode())
    path = user_cache() / "symptoms" / f"{name}.json"
    try:
        return Index(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        index = learn(texts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(index.to_json()), "utf-8")
        partial.replace(path)
    except OSError:  # a full or read-only disk costs a second next time
        pass
    return index


def learn(texts: tuple[tuple[str, str], ...]) -> Index:
    """Ridge regression from the grams of the texts, rarer ones weighing more, to one value per label."""
    if not texts:
        return Index([], [], 1.0, {})
    import numpy as np

    counted = [grams(text) for _, text in texts]
    spread = Counter(gram for counts in counted for gram in counts)
    known = {gram: i for i, gram in enumerate(sorted(g for g, n in spread.items() if n > 1 or CHINESE.match(g)))}
    rarity = np.array([round(1000 * (math.log((1 + len(texts)) / (1 + spread[g])) + 1)) / 1000 for g in known])
    x = np.zeros((len(texts), len(known)))
    for row, counts in zip(x, counted, strict=True):
        for gram, n in counts.items():
            if gram in known:
                row[known[gram]] = 1 + math.log(n)
    x = _unit(x * rarity)
    labels = sorted({label for label, _ in texts})
    y = np.array([[label == other for other in labels] for label, _ in texts], dtype=float)
    shares = y.mean(axis=0)
    weights = x.T @ np.linalg.solve(x @ x.T + RIDGE * np.eye(len(x)), y - shares) + CENTRE * _unit(y.T @ x).T
    step = float(np.abs(weights).max()) / LEVELS
    levels = np.rint(weights / step).astype(int)
    return Index(labels, [round(s, 6) for s in shares.tolist()], step, _coded(known, rarity, levels))


def _unit(rows):
    """The rows, each of length 1."""
    lengths = (rows * rows).sum(axis=1, keepdims=True) ** 0.5
    return rows / (lengths + (lengths == 0))


def _coded(known: dict[str, int], rarity, levels) -> dict[str, str]:
    coded = {}
    for gram, i in known.items():
        pairs = (f"{chr(ord('0') + j)}{chr(ord('P') + levels[i, j])}" for j in levels[i].nonzero()[0].tolist())
        coded[gram] = f"{round(1000 * rarity[i])} {''.join(pairs)}"
    return coded


@lru_cache(maxsize=64)
def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""
