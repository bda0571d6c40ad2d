"""A Python file as a row of tokens in which names, comments and layout no longer count.

The tokens are those of the syntax tree, in the order of the text. What a formatter changes (blanks, quotes, brackets,
trailing commas) is not in it; comments, docstrings, annotations and imports are left out. A name that the file gives is
`renamable`: a gram, the tokens in a window, numbers such names by their first appearance in it. So neither a renamed
variable nor a function that stands elsewhere changes a gram.
"""

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

MOST_BYTES, MOST_TOKENS = 200_000, 20_000  # of one file: a lab's has some 5 KB and 700 tokens
GRAM = 12  # tokens: about one and a half lines
SKIPPED = {"annotation", "returns", "type_comment", "ctx", "type_params"}


class NotComparable(ValueError):
    """A file that has no tokens; the message says why."""


@dataclass(frozen=True)
class Token:
    """One node of the syntax tree: what it is, the name in it, and the line where it begins."""

    kind: str
    line: int
    name: str = ""
    renamable: bool = False


def tokens(source: bytes) -> list[Token]:
    """The tokens of a file, which is parsed and never run. Raises NotComparable."""
    if len(source) > MOST_BYTES:
        raise NotComparable(f"has {len(source) >> 10} KiB, more than {MOST_BYTES >> 10}")
    try:
        tree = ast.parse(source)
        found = list(_walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotComparable(f"is no Python that can be parsed ({type(error).__name__})") from None
    if len(found) > MOST_TOKENS:
        raise NotComparable(f"has {len(found)} tokens, more than {MOST_TOKENS}")
    own = {name for node in ast.walk(tree) for name in _given(node)}
    return [Token(kind, line, name, name in own) for kind, line, name in found]


def grams(row: list[Token], length: int = GRAM) -> list[int]:
    """The hash of every window of `length` tokens, with renamable names numbered by their first appearance in it."""
    return [_hash(_canonical(row[i : i + length])) for i in range(len(row) - length + 1)]


def winnow(hashes: list[int], window: int = 4) -> set[int]:
    """The smallest hash of each `window` neighbours: enough to find whatever is alike over GRAM + window - 1 tokens."""
    if len(hashes) <= window:
        return set(hashes)
    return {min(hashes[i : i + window]) for i in range(len(hashes) - window + 1)}


def _hash(window: tuple) -> int:
    """The same in every process, which Python's own hash of a text is not."""
    return int.from_bytes(hashlib.blake2b(repr(window).encode(), digest_size=8).digest(), "big")


def _canonical(window: list[Token]) -> tuple:
    numbers: dict[str, int] = {}
    return tuple(
        (t.kind, numbers.setdefault(t.name, len(numbers)) if t.renamable else t.name) if t.name else t.kind
        for t in window
    )


def _walk(tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    """(kind, line, name) of every node, from the top; a stack, for a hostile file nests deeper than calls can."""
    waiting: list[tuple[ast.AST, int]] = [(tree, 1)]
    while waiting:
        node, line = waiting.pop()
        line = getattr(node, "lineno", line)
        if not (_is_docstring(node) or isinstance(node, ast.Import | ast.ImportFrom)):
            if node is not tree:
                yield type(node).__name__.removeprefix("Ann"), line, _name(node)  # an AnnAssign assigns
            waiting += [(child, line) for child in reversed(list(_children(node)))]


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for field, value in ast.iter_fields(node):
        if field not in SKIPPED:
            yield from (v for v in (value if isinstance(value, list) else [value]) if isinstance(v, ast.AST))


def _is_docstring(node: ast.AST) -> bool:
    """Any text that stands alone: it does nothing, wherever it is."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _name(node: ast.AST) -> str:
    """The word in a node: a name, an attribute, a keyword, or the kind of a constant, whose value is easily changed."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, bool) or node.value is None else type(node.value).__name__
    for field in ("id", "attr", "arg", "name"):
        if isinstance(word := getattr(node, field, None), str):
            return word
    return ""


def _given(node: ast.AST) -> Iterator[str]:
    """The names that a node gives to something."""
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.id if isinstance(node, ast.Name) else node.attr
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias) and node.asname:
        yield node.asname
