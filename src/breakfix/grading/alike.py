"""Files that have much in common, side by side, in the terminal and as a page; every sentence asks."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from breakfix.grading.similarity import STUDENT, Block, Candidate, Found, Pair
from breakfix.render.page import document, text
from breakfix.render.page import table as html_table

CAUTION = (
    "A question, not a finding: people who work together, who follow the same lecture or who search for the same words "
    "write alike. Ask how each came to their file before you think anything of it."
)
MOST_LINES = 20  # of one passage in the terminal


def said(pair: Pair) -> str:
    """What a pair has in common, in one sentence that accuses nobody."""
    whom = pair.right.name
    much = f"{pair.share:.0%} of what {_less(pair)} added to the starter is in both ({pair.shared} tokens)"
    if pair.identical:
        much = f"the two files are the same, byte by byte ({pair.shared} tokens beyond the starter)"
    ask = "how did they get there?" if pair.right.kind == STUDENT else "was it read before, or found alone?"
    return f"{pair.left.name} and {whom}: {much}; {ask}"


def _less(pair: Pair) -> str:
    return pair.left.name if pair.left_own <= pair.right_own else pair.right.name


def group_said(names: list[str]) -> str:
    """What is to be asked about files that hang together."""
    return f"{len(names)} files hang together: {', '.join(names)}. One source, or the fix that everybody finds?"


# ------------------------------------------------------------------------------------------------------------ terminal


def terminal(found: Iterable[Found], most: int) -> Group:
    """The ranked list of every lab, the first `most` pairs side by side."""
    return Group(*(part for lab in found for part in _lab(lab, most)), Text(CAUTION, "dim"))


def _lab(found: Found, most: int) -> Iterator[RenderableType]:
    yield Text(f"{found.lab}: {found.compared} files, {len(found.pairs)} to ask about", "bold")
    for names in found.groups():
        yield Text(f"  {_plain(group_said(names))}")
    for rank, pair in enumerate(found.pairs, 1):
        yield Text(f"  {rank}. {_plain(said(pair))}")
        if rank <= most:
            yield _side_by_side(pair)


def _side_by_side(pair: Pair) -> Table:
    table = Table(show_lines=True, expand=True)
    for side in (pair.left, pair.right):
        table.add_column(Text(_plain(side.name)), ratio=1, overflow="fold")
    for block in pair.blocks:
        table.add_row(_numbered(pair.left, block.left), _numbered(pair.right, block.right))
    return table


def _numbered(candidate: Candidate, span: tuple[int, int]) -> Text:
    first, last = span
    lines = [f"{n:4} {_plain(line)}" for n, line in enumerate(candidate.lines[first - 1 : last], first)]
    more = [f"     … {len(lines) - MOST_LINES} lines more"] if len(lines) > MOST_LINES else []
    return Text("\n".join(lines[:MOST_LINES] + more))


def _plain(words: str) -> str:
    """Without what would move a terminal's cursor or change its title."""
    return "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in words)


# ---------------------------------------------------------------------------------------------------------------- HTML


def page(found: list[Found]) -> str:
    """The ranked list of every lab, each pair with its passages and both files."""
    parts = [f"<p>{text(CAUTION)}</p>", "<p>What the starter has is not counted.</p>"]
    return document("Which files to ask about", "".join(parts + [_html_lab(lab) for lab in found]))


def _html_lab(found: Found) -> str:
    head = f"<h2>{text(found.lab)}</h2><p>{found.compared} files, {len(found.pairs)} to ask about.</p>"
    notes = [*map(group_said, found.groups()), *found.notes]
    listed = "".join(f"<li>{text(note)}</li>" for note in notes)
    return head + (f"<ul>{listed}</ul>" if notes else "") + "".join(map(_html_pair, found.pairs))


def _html_pair(pair: Pair) -> str:
    sides = (pair.left, [b.left for b in pair.blocks]), (pair.right, [b.right for b in pair.blocks])
    whole = "".join(f"<div><b>{text(c.name)}</b><pre>{_marked(c, spans)}</pre></div>" for c, spans in sides)
    figures = html_table(
        ["", "tokens of its own", "shared"],
        [
            [text(c.name), str(own), f"{min(1, pair.shared / max(1, own)):.0%}"]
            for c, own in ((pair.left, pair.left_own), (pair.right, pair.right_own))
        ],
        numbers=2,
    )
    passages = "".join(_html_block(pair, block) for block in pair.blocks)
    files = f'<details><summary>Both files</summary><div class="pair">{whole}</div></details>'
    return f"<h3>{text(said(pair))}</h3>{figures}{passages}{files}"


def _html_block(pair: Pair, block: Block) -> str:
    sides = (pair.left, block.left), (pair.right, block.right)
    cells = [
        f'<div>{text(c.name)}, lines {a} to {b}<pre class="wrap">{text(c.text(a, b))}</pre></div>'
        for c, (a, b) in sides
    ]
    return f'<div class="pair">{"".join(cells)}</div>'


def _marked(candidate: Candidate, spans: list[tuple[int, int]]) -> str:
    marked = {n for first, last in spans for n in range(first, last + 1)}
    lines = [(n, f"{n:4} {text(line)}") for n, line in enumerate(candidate.lines, 1)]
    return "\n".join(f"<mark>{line}</mark>" if n in marked else line for n, line in lines)
