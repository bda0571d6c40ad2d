"""Makes docs/claims.md from claims/ledger.jsonl: what two articles say about PyTorch, and what is really so.

A claim's evidence is a list of names. `lab01/test_losses` is a check of a lab, `lab01/wrong/sgd` a wrong fix that its
checks reject, `lab01/right/fused` a right one that they pass; `unit/test_ledger_memory/test_x` is a test of the
project, `bench/claim_times/x` a benchmark, which shows a time and grades none. `look-up: ...` says what was read where
nothing can be run. A name that leads nowhere is a warning.
"""

import ast
import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from breakfix.catalog import Catalog, Lab

log = logging.getLogger("mkdocs.hooks.claims")

LEDGER = Path("claims", "ledger.jsonl")
SIGNS = {  # a verdict, as the page shows it: never by colour alone
    "holds": "✓ holds",
    "partly": "◐ partly",
    "refuted": "✗ refuted",
    "needs-gpu": "▢ needs a GPU",
    "unverified": "? unverified",
    "opinion": "– opinion",
}
LOOK_UP = "look-up: "
FOLDERS = {"unit": Path("tests", "unit"), "bench": Path("bench")}  # of evidence that no lab has
NONE_YET = "no running evidence yet"


@dataclass(frozen=True)
class Claim:
    """One line of the ledger."""

    id: str  # "A-2.1-05": article, section, number
    claim: str
    verdict: str
    truth: str
    kind: str
    lab: str | None
    evidence: tuple[str, ...]

    @property
    def article(self) -> str:
        return self.id[0]

    @property
    def section(self) -> str:
        return self.id.rpartition("-")[0]

    @property
    def runs(self) -> tuple[str, ...]:
        """The evidence that can be run."""
        return tuple(name for name in self.evidence if not name.startswith(LOOK_UP))


def read(root: Path) -> list[Claim]:
    """The claims, in the order of the ledger."""
    lines = (root / LEDGER).read_text("utf-8").splitlines()
    return [Claim(**data | {"evidence": tuple(data["evidence"])}) for data in map(json.loads, lines)]


def exists(name: str, root: Path, labs: dict[str, Lab]) -> bool:
    """Whether there is what a name of evidence means."""
    first, _, rest = name.partition("/")
    if name.startswith(LOOK_UP):
        return True
    if first in FOLDERS:
        file, _, function = rest.partition("/")
        return function in _functions(root / FOLDERS[first] / f"{file}.py")
    if first not in labs:
        return False
    if rest.startswith("test_"):
        return rest in {check.name for check in labs[first].checks}
    return (labs[first].tests_path / f"{rest}.py").is_file()


@cache
def _functions(path: Path) -> frozenset[str]:
    """The names of a file's functions, read without running it."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8"))) if path.is_file() else ()
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef))


# --------------------------------------------------------------------------------------------------------- the page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    root = Path(config.config_file_path).parent
    claims, labs = read(root), {lab.id: lab for lab in Catalog.read(root)}
    for claim in claims:
        for name in claim.runs:
            if not exists(name, root, labs):
                log.warning("claims/ledger.jsonl: %s names %s, which does not exist", claim.id, name)
    files.append(File.generated(config, "claims.md", content=page(claims, labs)))
    return files


def page(claims: list[Claim], labs: dict[str, Lab]) -> str:
    """The page, as Markdown."""
    return _template().render(
        claims=claims, signs=SIGNS, counts=counts(claims), shown=lambda claim: shown(claim, labs), cell=cell,
        running=sum(bool(claim.runs) for claim in claims),
    )  # fmt: skip


def counts(claims: list[Claim]) -> dict[str, Counter[str]]:
    """Verdicts by article, and of both."""
    by = {article: Counter(c.verdict for c in claims if c.article == article) for article in "AB"}
    return by | {"both": by["A"] + by["B"]}


def shown(claim: Claim, labs: dict[str, Lab]) -> str:
    """What shows it, as Markdown: the lab's page, and the names of checks and tests."""
    parts = [] if claim.runs or claim.verdict == "opinion" else [_nothing_yet(claim, labs)]
    for place in dict.fromkeys(name.partition("/")[0] for name in claim.runs):
        names = [name.partition("/")[2] for name in claim.runs if name.startswith(f"{place}/")]
        says: Callable[[str], str] = SAYS.get(place, _check)
        parts.append(("" if place in FOLDERS else f"{_link(place, labs)}: ") + ", ".join(map(says, names)))
    if claim.lab and not any(name.startswith(claim.lab) for name in claim.runs):
        parts.append(f"the lab: {_link(claim.lab, labs)}")
    parts += [f"read, not run: {name.removeprefix(LOOK_UP)}" for name in claim.evidence if name.startswith(LOOK_UP)]
    return "; ".join(parts) or "nothing to run"


def cell(text: str) -> str:
    """Plain words as they may stand in a cell of a table: nothing in them is markup."""
    return "".join(f"&#{ord(c)};" if c in "|*_`<>[]\\&" else c for c in text)


def _nothing_yet(claim: Claim, labs: dict[str, Lab]) -> str:
    if claim.verdict == "needs-gpu":
        return "not run"
    missing = claim.lab and claim.lab not in labs
    return f"{NONE_YET}: {claim.lab} is not written yet" if missing else NONE_YET


def _link(lab: str, labs: dict[str, Lab]) -> str:
    return f"[{lab}](labs/{lab}/index.md)" if lab in labs else f"{lab} (not written yet)"


def _check(name: str) -> str:
    kind, _, variant = name.partition("/")
    words = {"wrong": "the wrong fix", "right": "the right fix"}
    return f"{words[kind]} *{_words(variant)}*" if variant else f"*{_words(name)}*"


def _test(name: str) -> str:
    return f"the test *{_words(name.partition('/')[2])}*"


def _timed(name: str) -> str:
    return f"timed, not graded: *{_words(name.partition('/')[2])}*"


SAYS: dict[str, Callable[[str], str]] = {"unit": _test, "bench": _timed}


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    strict = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return jinja2.Environment(loader=loader, keep_trailing_newline=True, **strict).get_template("claims.md.jinja")
