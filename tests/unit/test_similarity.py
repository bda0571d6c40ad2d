"""Files that are alike: no disguise hides a copy, and what everybody would write is no copy."""

import ast
import random
import re
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakfix.catalog import Catalog
from breakfix.grading import alike
from breakfix.grading.similarity import PUBLISHED, STUDENT, Candidate, compare
from breakfix.grading.tokens import GRAM, NotComparable, grams, tokens, winnow

LAB = Catalog.read()["lab08"]
STARTER = LAB.starter.read_text("utf-8")
OWN_WAY = '''

def masked_mean(values, keep):
    """The mean of what is kept."""
    kept = values[keep]
    if kept.numel() == 0:
        return values.sum() * 0
    return kept.double().mean().to(values.dtype)


def rows_with_choice(mask):
    """Rows that allow anything at all."""
    allowed = torch.isfinite(mask).any(dim=-1)
    count = int(allowed.sum())
    while count > 1 and not allowed[-1]:
        count -= 1
    return allowed, count


def report(history, every=10):
    """A line for every tenth step."""
    for step, (loss, norm) in enumerate(zip(*history)):
        if step % every == 0 or loss != loss:
            print(f"{step:5d} {loss:.4f} {norm:.3g}")
    return len(history[0])
'''
ANOTHER_WAY = '''

class Running:
    """A loss that is averaged over all that was counted."""

    def __init__(self):
        self.total, self.n = torch.zeros(()), 0

    def add(self, per_row, valid):
        self.total = self.total + per_row[valid].sum()
        self.n += int(valid.sum())
        return self

    def value(self):
        return self.total / max(self.n, 1)


def split_by_length(batch, lengths, most=512):
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    groups, current = [], []
    for index in order:
        if sum(lengths[i] for i in current) + lengths[index] > most:
            groups.append(current)
            current = []
        current.append(index)
    return [batch[g] for g in groups + [current] if g]
'''
WORK, OTHER = STARTER + OWN_WAY, STARTER + ANOTHER_WAY


def found(**sources):
    return compare(LAB, [Candidate(name, text.encode()) for name, text in sources.items()])


def asked(**sources) -> set[tuple[str, str]]:
    return {(p.left.name, p.right.name) for p in found(**sources).pairs}


class _Renamed(ast.NodeTransformer):
    """Every name that the file gives gets another."""

    def __init__(self, tree):
        stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        arguments = {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
        functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        self.names = {name: f"q{i}" for i, name in enumerate(sorted(stored | arguments | functions))}

    def generic_visit(self, node):
        for field in ("id", "arg", "name"):
            if getattr(node, field, None) in self.names:
                setattr(node, field, self.names[getattr(node, field)])
        return super().generic_visit(node)


def renamed(text: str) -> str:
    tree = ast.parse(text)
    return ast.unparse(_Renamed(tree).visit(tree))


def reordered(text: str) -> str:
    tree = ast.parse(text)
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    shuffled = random.Random(3).sample(functions, len(functions))
    tree.body = [n for n in tree.body if not isinstance(n, ast.FunctionDef)] + shuffled
    return ast.unparse(tree)


def commented(text: str) -> str:
    return re.sub(r"^(\s+)(return|if|for)\b", r"\1# what I thought of myself\n\n\1\2", text, flags=re.M)


def reformatted(text: str) -> str:
    """Other quotes, brackets, breaks and trailing commas; no docstrings, annotations instead."""
    text = re.sub(r'^ +"""[^"]*"""$', "", text, flags=re.M)
    text = "\n".join(row if "'" in row or 'f"' in row else row.replace('"', "'") for row in text.split("\n"))
    return text.replace("kept = values[keep]", "kept: object = (\n        values[\n            keep\n        ]\n    )")


DISGUISES = {
    "nothing": lambda text: text,
    "renamed": renamed,
    "reordered": reordered,
    "commented": commented,
    "reformatted": reformatted,
    "all": lambda text: commented(reordered(renamed(text))),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_no_disguise_hides_a_copy(disguise):
    result = found(ada=WORK, bob=DISGUISES[disguise](WORK), cy=OTHER)
    assert [(p.left.name, p.right.name) for p in result.pairs] == [("ada", "bob")]
    assert result.pairs[0].share > 0.9


def test_a_part_of_a_copy_is_found_in_a_longer_file():
    [pair] = found(ada=WORK, bob=renamed(OTHER + OWN_WAY)).pairs
    assert pair.share > 0.9
    assert pair.right_own > 2 * pair.left_own * 0.9


def test_two_students_with_the_obvious_fix_are_not_asked():
    before = "log_probs = torch.log(torch.softmax(logits + mask, dim=-1))"
    line = next((row for row in STARTER.splitlines() if "softmax" in row and "=" in row), None)
    assert line, before
    name = line.split("=")[0].strip()
    fixed = STARTER.replace(line, f"    {name} = torch.log_softmax(logits.float() + mask, dim=-1)")
    assert fixed != STARTER
    assert asked(ada=fixed, bob=fixed.replace("  # ", "  ## "), cy=renamed(fixed)) == set()


def test_what_the_starter_gives_is_nobodys():
    assert asked(ada=STARTER, bob=STARTER, cy=renamed(STARTER)) == set()


@pytest.mark.parametrize("lab", ["lab01", "lab12", "lab20"])
def test_a_published_solution_is_found_when_it_is_long_enough_to_tell(lab):
    """And what two students both have of it is a question to each of them, not about the two."""
    lab = Catalog.read()[lab]
    longest = max((v.path for v in lab.variants if v.kind == "right"), key=lambda path: path.stat().st_size)
    copy = renamed(longest.read_text("utf-8")).encode()
    pairs = compare(lab, [Candidate("ada", copy), Candidate("bob", copy + b"\n# mine\n")]).pairs
    assert {(p.left.name, p.right.kind) for p in pairs} == {("ada", PUBLISHED), ("bob", PUBLISHED)}


def test_independent_work_is_not_asked_about():
    assert asked(ada=WORK, bob=OTHER) == set()


def test_a_ring_is_one_question():
    result = found(ada=WORK, bob=renamed(WORK), cy=commented(WORK), dora=OTHER)
    assert result.groups() == [("ada", "bob", "cy")]
    assert len(result.pairs) == 3


def test_passages_name_the_lines_on_both_sides():
    [pair] = found(ada=WORK, bob="# mine\n" * 5 + reordered(WORK)).pairs
    lines = WORK.splitlines()
    there = {lines[n - 1] for b in pair.blocks for n in range(b.left[0], b.left[1] + 1)}
    assert "    return kept.double().mean().to(values.dtype)" in there
    assert all(1 <= b.left[0] <= b.left[1] <= len(lines) for b in pair.blocks)
    right = pair.right.lines
    assert any("kept.double()" in right[n - 1] for b in pair.blocks for n in range(b.right[0], b.right[1] + 1))


@pytest.mark.parametrize("words", ["cheat", "copied", "plagiar", "guilty", "stolen", "suspect", "dishonest"])
def test_nothing_accuses(words):
    result = found(ada=WORK, bob=renamed(WORK))
    assert words not in alike.page([result]).lower()
    assert "?" in alike.said(result.pairs[0])


@pytest.mark.parametrize(
    "source",
    [
        b"x = (", b"\0", b"\xff\xfe", b"(" * 5000, b"x = " + b"-" * 50_000 + b"1", b"1" * 10_000, b"a" * 300_000,
        b"[0]" * 30_000, b"# coding: nonsense\n",
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_compared_stops_nobody_else(source):
    result = compare(LAB, [Candidate("eve", source), Candidate("ada", WORK.encode()), Candidate("bob", WORK.encode())])
    assert {(p.left.name, p.right.name) for p in result.pairs} == {("ada", "bob")}
    assert not [note for note in result.notes if "eve" not in note]


def test_a_page_shows_what_was_written_and_does_nothing():
    evil = WORK.replace('"""The mean of what is kept."""', 'x = "<script>alert(1)</script>\x1b[2J\u202e"')
    result = compare(LAB, [Candidate("<img src=x onerror=y>", evil.encode()), Candidate("bob", evil.encode())])
    page = alike.page([result])
    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page


def test_a_hundred_files_take_seconds():
    draw = random.Random(7)
    bodies = [OWN_WAY, ANOTHER_WAY]
    files = []
    for i in range(100):
        own = "\n".join(
            f"def f{i}_{j}(a, b={draw.randint(0, 9)}):\n    return a {draw.choice('+-*/')} b.{draw.choice('xyz')}{j}"
            for j in range(draw.randint(5, 30))
        )
        files.append(Candidate(f"s{i:03}", (STARTER + bodies[i % 2] * (i < 4) + own).encode()))
    begin = time.process_time()
    result = compare(LAB, files)
    assert time.process_time() - begin < 20
    assert result.compared == 100
    assert {(p.left.name, p.right.name) for p in result.pairs} >= {("s000", "s002"), ("s001", "s003")}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=60), st.lists(st.integers(0, 5), max_size=60), st.integers(1, 6))
def test_winnowing_finds_every_common_run_that_is_long_enough(left, right, window):
    a, b = winnow(left, window), winnow(right, window)
    runs = {tuple(left[i : i + window]) for i in range(len(left) - window + 1)}
    if any(tuple(right[i : i + window]) in runs for i in range(len(right) - window + 1)):
        assert a & b


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200))
def test_any_text_has_tokens_or_is_refused(text):
    row = None
    with suppress(NotComparable):  # and nothing else
        row = tokens(text.encode("utf-8", errors="surrogatepass"))
    assert row is None or len(grams(row)) == max(0, len(row) - GRAM + 1)


def test_published_files_are_never_compared_with_each_other():
    assert all(p.left.kind == STUDENT for p in found(ada=LAB.solution.read_text("utf-8")).pairs)
