"""Which files of a class have more in common than the lab gave everybody: a question to ask, never an answer.

Of every file what the starter has too is put aside first. The published solution and the right variants are among the
candidates; what two students share with one of those says nothing about either of them, and is put aside as well.
Nothing leaves the machine and nothing is run.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

from breakfix.catalog import Lab
from breakfix.grading.tokens import GRAM, NotComparable, grams, tokens, winnow

LEAST_TOKENS = 40  # that two files must share to be asked about, four lines or so: a shorter fix is found by many
LEAST_SHARE = 0.5  # of what the one with less of its own has added
LEAST_BLOCK = 6  # tokens: a shorter run that both added is a phrase, not a passage
MOST_PLACES = (
    50  # of one gram that are tried: a file of one line a thousand times must not take a thousand times as long
)
STUDENT, PUBLISHED = "student", "published"


@dataclass(frozen=True)
class Candidate:
    """A file that may have something in common with another: a student's, or one that everybody can read."""

    name: str
    source: bytes = field(repr=False)
    kind: str = STUDENT
    where: str = ""

    @property
    def lines(self) -> list[str]:
        """Counted as Python counts them."""
        return self.source.decode("utf-8", errors="replace").replace("\r\n", "\n").split("\n")

    def text(self, first: int, last: int) -> str:
        """The lines from `first` to `last`, counted from 1."""
        return "\n".join(self.lines[first - 1 : last])


@dataclass(frozen=True)
class Block:
    """A passage that two files share: first and last line in each, and how many of its tokens are their own."""

    left: tuple[int, int]
    right: tuple[int, int]
    tokens: int


@dataclass(frozen=True)
class Pair:
    """Two files of a lab and what they share beyond the starter."""

    lab: str
    left: Candidate
    right: Candidate
    shared: int  # tokens
    left_own: int  # tokens that the left file has beyond the starter
    right_own: int
    blocks: tuple[Block, ...] = ()
    identical: bool = False

    @property
    def share(self) -> float:
        """What is shared, by what the file with less of its own has added."""
        return min(1.0, self.shared / max(1, min(self.left_own, self.right_own)))

    @property
    def rank(self) -> float:
        """A passage of length counts more than two lines that are wholly alike."""
        return self.share * self.shared

    def to_json(self) -> dict[str, Any]:
        """A dict for json.dumps, with the passages' text."""
        return {
            "lab": self.lab, "left": self.left.name, "right": self.right.name, "right_is": self.right.kind,
            "shared_tokens": self.shared, "share": round(self.share, 3), "left_own": self.left_own,
            "right_own": self.right_own, "identical": self.identical,
            "passages": [self._passage(block) for block in self.blocks],
        }  # fmt: skip

    def _passage(self, block: Block) -> dict[str, Any]:
        return {
            "tokens": block.tokens, "left_lines": block.left, "left": self.left.text(*block.left),
            "right_lines": block.right, "right": self.right.text(*block.right),
        }  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What there is to ask about a lab, the most alike first, and which files could not be compared."""

    lab: str
    pairs: list[Pair]
    compared: int
    notes: list[str]

    def groups(self) -> list[list[str]]:
        """The students that are linked by pairs, three or more: one question, however many pairs there are."""
        together: dict[str, set[str]] = {}
        for pair in (p for p in self.pairs if p.right.kind == STUDENT):
            group = together.get(pair.left.name, {pair.left.name}) | together.get(pair.right.name, {pair.right.name})
            together |= dict.fromkeys(group, group)
        return sorted({tuple(sorted(group)) for group in together.values() if len(group) > 2})


class _Prepared:
    """A file's tokens and grams, and which of its tokens are in a gram that the starter has, or a published file."""

    def __init__(self, candidate: Candidate, given: set[int], public: set[int] = frozenset()):
        self.candidate = candidate
        self.row = tokens(candidate.source)
        self.grams = grams(self.row)
        self.given = _covered([gram in given for gram in self.grams], len(self.row))
        self.known = _covered([gram in given or gram in public for gram in self.grams], len(self.row))

    @cached_property
    def fingerprints(self) -> set[int]:
        """The few grams by which another file with the same passage is found."""
        return winnow([self.grams[i] for i in self.own])

    @cached_property
    def own(self) -> list[int]:
        """The places of the grams that hold something which is not the starter's."""
        return [i for i in range(len(self.grams)) if not all(self.given[i : i + GRAM])]

    @cached_property
    def places(self) -> dict[int, list[int]]:
        """Where each gram stands."""
        places: dict[int, list[int]] = defaultdict(list)
        for j, gram in enumerate(self.grams):
            places[gram].append(j)
        return places

    def lines(self, first: int, last: int) -> tuple[int, int]:
        """The first and the last line of the tokens from `first` to before `last`."""
        lines = [token.line for token in self.row[first:last]]
        return min(lines), max(lines)


def published(lab: Lab) -> list[Candidate]:
    """What everybody can read: the lab's solution and its right variants."""
    right = [(f"right/{v.path.name}", v.path) for v in lab.variants if v.kind == "right"]
    there = [("the published solution", lab.solution), *right]
    return [Candidate(name, path.read_bytes(), PUBLISHED) for name, path in there if path.is_file()]


def compare(lab: Lab, students: Iterable[Candidate]) -> Found:
    """Every pair of a lab's files that is worth a question, the most alike first."""
    notes: list[str] = []
    starter = set(grams(tokens(lab.starter.read_bytes())))
    known = list(_prepared(published(lab), starter, frozenset(), notes))
    public = {gram for other in known for gram in other.grams}
    theirs = list(_prepared(students, starter, public, notes))
    pairs = [_pair(lab, a, b, a.given, b.given) for a, b in _near(theirs, known)]
    pairs += [_pair(lab, a, b, a.known, b.known) for a, b in _near_each_other(theirs)]
    worth = sorted((p for p in pairs if _is_worth_asking(p)), key=lambda p: (-p.rank, p.left.name, p.right.name))
    return Found(lab.id, _best_published(worth), len(theirs), notes)


def _is_worth_asking(pair: Pair) -> bool:
    return pair.shared >= LEAST_TOKENS and pair.share >= LEAST_SHARE


def _best_published(pairs: list[Pair]) -> list[Pair]:
    """Published files are alike among themselves: of those that resemble a student's only the nearest is told."""
    seen: set[str] = set()
    kept = []
    for pair in pairs:
        if pair.right.kind == STUDENT or pair.left.name not in seen:
            kept.append(pair)
        if pair.right.kind == PUBLISHED:
            seen.add(pair.left.name)
    return kept


def _prepared(
    candidates: Iterable[Candidate], starter: set[int], public: set[int], notes: list[str]
) -> Iterator[_Prepared]:
    for candidate in candidates:
        try:
            yield _Prepared(candidate, starter, public)
        except NotComparable as error:
            notes.append(f"{candidate.name}: not compared, the file {error}")


def _near(theirs: list[_Prepared], known: list[_Prepared]) -> Iterator[tuple[_Prepared, _Prepared]]:
    return ((a, b) for a in theirs for b in known if len(a.fingerprints & b.fingerprints) > 1)


def _near_each_other(theirs: list[_Prepared]) -> Iterator[tuple[_Prepared, _Prepared]]:
    """Pairs of students with fingerprints in common, found by fingerprint: most pairs of a class have none."""
    holders: dict[int, list[int]] = defaultdict(list)
    for i, one in enumerate(theirs):
        for fingerprint in one.fingerprints:
            holders[fingerprint].append(i)
    common: dict[tuple[int, int], int] = defaultdict(int)
    for sharing in holders.values():
        for pair in combinations(sharing, 2):
            common[pair] += 1
    return ((theirs[i], theirs[j]) for (i, j), count in sorted(common.items()) if count > 1)


def _pair(lab: Lab, a: _Prepared, b: _Prepared, left_aside: list[bool], right_aside: list[bool]) -> Pair:
    """What both have, passage by passage; of each file the tokens that are put aside are not counted."""
    blocks = [block for run in _runs(a, b) for block in _blocks(a, b, left_aside, *run)]
    identical = a.candidate.source == b.candidate.source
    own = left_aside.count(False), right_aside.count(False)
    shared = min(sum(block.tokens for block in blocks), *own)
    return Pair(lab.id, a.candidate, b.candidate, shared, *own, tuple(blocks), identical)


def _runs(a: _Prepared, b: _Prepared) -> Iterator[tuple[int, int, int]]:
    """(place in a, place in b, grams) of what both have, in whatever order: the longest from each place."""
    used: set[int] = set()
    after = 0
    for i in a.own:
        places = b.places.get(a.grams[i], ())[:MOST_PLACES] if i >= after else ()
        if free := [j for j in places if j not in used]:
            length, at = max((_reach(a.grams, b.grams, i, j, used), -j) for j in free)
            used.update(range(-at, -at + length))
            after = i + length
            yield i, -at, length


def _reach(left: list[int], right: list[int], i: int, j: int, used: set[int]) -> int:
    n = 0
    while i + n < len(left) and j + n < len(right) and j + n not in used and left[i + n] == right[j + n]:
        n += 1
    return n


def _blocks(a: _Prepared, b: _Prepared, aside: list[bool], i: int, j: int, length: int) -> Iterator[Block]:
    """The passages of a run of grams: its tokens that are not put aside, cut where many that are lie between them."""
    own = [n for n in range(length + GRAM - 1) if not aside[i + n]]
    if len(own) >= LEAST_BLOCK:
        cuts = [k for k in range(1, len(own)) if own[k] - own[k - 1] > GRAM]
        for first, last in zip([0, *cuts], [*cuts, len(own)], strict=True):
            n, m = own[first], own[last - 1] + 1
            yield Block(a.lines(i + n, i + m), b.lines(j + n, j + m), last - first)


def _covered(hits: list[bool], length: int) -> list[bool]:
    """Which of `length` tokens lie in a gram that is hit."""
    covered, left = [False] * length, 0
    for i in range(length):
        left = GRAM if i < len(hits) and hits[i] else left - 1
        covered[i] = left > 0
    return covered
