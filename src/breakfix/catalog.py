"""The catalog: labs as their folders describe them, read and validated.

A root is a folder with `labs/`, `solutions/` and `tests/labs/`, each holding one folder per lab. The project's own is
one; an instructor's or a team's is another.
"""

import ast
import importlib.util
import math
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from breakfix.child import Bounds

TRACKS = ("first", "memory", "numerics", "compile", "data", "distributed", "ship", "maintain")
NEEDS = re.compile(r"cuda|onnx|serve|quantize|fork|ranks:[2-9]")
FIGURES = ("curve", "timeline", "bars", "matrix")
HINTS = 4
ROOTS_VARIABLE = "BREAKFIX_ROOTS"  # further roots, separated like PATH


class UnknownLab(LookupError):
    """There is no such lab; the message says which there are."""


@dataclass(frozen=True)
class Problem:
    """Something wrong with a lab's files, and what its author should do about it."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class BadLab(Exception):
    """A lab.toml that cannot be used; `problems` says what to do."""

    def __init__(self, problems: list[Problem]):
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True)
class Check:
    """A check as its source declares it."""

    name: str
    points: int
    says: str


@dataclass(frozen=True)
class Variant:
    """A right or a wrong fix: the grader's own test. `expects` names the checks that a wrong one fails, or a state."""

    path: Path
    kind: str  # "right" or "wrong"
    reason: str
    expects: frozenset[str] = frozenset()
    needs_cuda: bool = False


@dataclass(frozen=True)
class Lab:
    """One lab: its folders, and what its lab.toml says."""

    root: Path
    folder: str  # lab08_loss_is_nan_sometimes
    spec: dict[str, Any] = field(repr=False, compare=False)

    @property
    def id(self) -> str:
        """`lab08`, the name that people type."""
        return self.folder.partition("_")[0]

    @property
    def path(self) -> Path:
        return self.root / "labs" / self.folder

    @property
    def solution_path(self) -> Path:
        return self.root / "solutions" / self.folder

    @property
    def tests_path(self) -> Path:
        return self.root / "tests" / "labs" / self.folder

    @property
    def checks_path(self) -> Path:
        return self.tests_path / "test_checks.py"

    @property
    def starter(self) -> Path:
        return self.path / self.editable

    @property
    def solution(self) -> Path:
        return self.solution_path / self.editable

    @property
    def title(self) -> str:
        return self.spec["title"]

    @property
    def track(self) -> str:
        return self.spec["track"]

    @property
    def level(self) -> int:
        return self.spec["level"]

    @property
    def minutes(self) -> int:
        return self.spec["minutes"]

    @property
    def editable(self) -> str:
        return self.spec["editable"]

    @property
    def alert(self) -> str:
        return self.spec["alert"]

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(self.spec.get("needs", ()))

    @property
    def prerequisites(self) -> tuple[str, ...]:
        return tuple(self.spec.get("prerequisites", ()))

    @property
    def symptoms(self) -> tuple[str, ...]:
        return tuple(self.spec["symptoms"])

    @property
    def hints(self) -> tuple[str, ...]:
        return tuple(hint["text"] for hint in self.spec["hint"])

    @property
    def predictions(self) -> tuple[dict[str, Any], ...]:
        return tuple(self.spec.get("predict", ()))

    @property
    def figure(self) -> dict[str, Any]:
        return self.spec["figure"]

    @property
    def bounds(self) -> Bounds:
        return Bounds(**self.spec["budget"])

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """The checks of test_checks.py, read without running it."""
        return tuple(_checks(self.checks_path))

    @property
    def starter_fails(self) -> frozenset[str]:
        """What the starter must fail: names of checks, or a state. Declared in the first line of test_checks.py."""
        return _expects(self.checks_path.read_text("utf-8"), "starter")

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The right and the wrong fixes, in the order of their names."""
        found = [
            _variant(path, kind)
            for kind in ("right", "wrong")
            for path in sorted((self.tests_path / kind).glob("*.py"))
        ]
        return tuple(found)

    @cached_property
    def measurement(self) -> ModuleType:
        """measure.py, imported: the asking side's own code."""
        return load_module(self.path / "measure.py", f"breakfix_measure_{self.folder}")

    def readme(self) -> str:
        """The lab's README with its alert filled in."""
        return (self.path / "README.md").read_text("utf-8").replace("{alert}", self.alert)


@dataclass(frozen=True)
class Catalog:
    """The labs of one or more roots, by id; and, by folder, the labs that could not be read."""

    labs: tuple[Lab, ...]
    bad: dict[str, BadLab] = field(default_factory=dict)

    @classmethod
    def read(cls, *roots: Path) -> "Catalog":
        """The labs of `roots`; default: the project's own and those of BREAKFIX_ROOTS. One bad lab spoils no other."""
        labs: dict[str, Lab] = {}
        bad: dict[str, BadLab] = {}
        once = dict.fromkeys(Path(root).resolve() for root in roots or default_roots())
        for path in (path for root in once for path in _lab_folders(root)):
            try:
                lab = read_lab(path)
                if lab.id in labs:
                    clash = f"{lab.id} exists already in {labs[lab.id].path}; take another number"
                    raise BadLab([Problem(str(path), clash)])
                labs[lab.id] = lab
            except BadLab as error:
                bad[path.name] = error
        return cls(tuple(labs[name] for name in sorted(labs)), bad)

    def __iter__(self) -> Iterator[Lab]:
        return iter(self.labs)

    def __getitem__(self, name: str) -> Lab:
        """The lab called `name`: its id, its folder, or just its number. Raises UnknownLab, or BadLab for faults."""
        wanted = f"lab{int(name):02d}" if name.isdecimal() else name.rstrip("/\\")
        for lab in self.labs:
            if wanted in (lab.id, lab.folder):
                return lab
        for folder, error in self.bad.items():
            if wanted in (folder, folder.partition("_")[0]):
                raise error
        raise UnknownLab(f"there is no lab {name!r}; there are {', '.join(lab.id for lab in self.labs) or 'none'}")


def own_root() -> Path:
    """The project's own labs: of the checkout, or carried by the wheel."""
    package = Path(__file__).resolve().parent
    checkout = package.parents[1]
    return checkout if (checkout / "labs").is_dir() and (checkout / "tests" / "labs").is_dir() else package / "content"


def default_roots() -> list[Path]:
    """The project's own root, then those of BREAKFIX_ROOTS."""
    return [own_root(), *(Path(p) for p in os.environ.get(ROOTS_VARIABLE, "").split(os.pathsep) if p)]


def read_lab(path: Path) -> Lab:
    """The lab whose folder is `path` (…/labs/lab08_name). Raises BadLab."""
    path = Path(path).resolve()
    file = path / "lab.toml"
    try:
        spec = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise BadLab([Problem(str(file), "is missing; `breakfix new` writes one")]) from None
    except OSError as error:
        raise BadLab([Problem(str(file), f"cannot be read ({error.strerror}); make it a readable file")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadLab([Problem(str(file), f"is not valid TOML: {error}")]) from None
    problems = [Problem(f"labs/{path.name}/lab.toml", what) for what in spec_problems(spec)]
    if not re.fullmatch(r"lab\d\d_[a-z0-9_]+", path.name):
        problems.append(Problem(f"labs/{path.name}", "name the folder labNN_what_a_person_sees, in lower case"))
    if problems:
        raise BadLab(problems)
    return Lab(path.parents[1], path.name, spec)


def is_editable(name: str) -> bool:
    """Whether the file that learners change may be called `name`."""
    return bool(re.fullmatch(r"\w+\.py", name)) and name != "measure.py"


def spec_problems(spec: dict[str, Any]) -> list[str]:
    """What is wrong with the contents of a lab.toml, each with what to do."""
    rules = (_value_problems, _hint_problems, _predict_problems, _figure_problems, _budget_problems)
    return list(_type_problems(spec)) or [what for rule in rules for what in rule(spec)]


# key: (type, required)
_KEYS: dict[str, tuple[type, bool]] = {
    "title": (str, True), "track": (str, True), "level": (int, True), "minutes": (int, True), "editable": (str, True),
    "needs": (list, False), "alert": (str, True), "prerequisites": (list, False), "symptoms": (list, True),
    "budget": (dict, True), "hint": (list, True), "predict": (list, False), "figure": (dict, True),
}  # fmt: skip
_TOML = {str: "string", int: "integer", float: "float", bool: "boolean", list: "array", dict: "table"}


def _type_problems(spec: dict[str, Any]) -> Iterator[str]:
    for key, (kind, required) in _KEYS.items():
        if key not in spec and required:
            yield f"{key} is missing; add it, of type {_TOML[kind]}"
        elif key in spec and type(spec[key]) is not kind:
            yield f"{key} is of type {_type_name(spec[key])}; make it {_TOML[kind]}"
        elif key in spec and required and (spec[key] in ([], {}) or _blank(spec[key])):
            yield f"{key} is empty; fill it in"
    for key in ("needs", "prerequisites", "symptoms"):
        if type(spec.get(key)) is list and not _texts(spec[key]):
            yield f"{key} has an entry that is no text; make every one a string"


def _value_problems(spec: dict[str, Any]) -> Iterator[str]:
    if spec["track"] not in TRACKS:
        yield f"track is {spec['track']!r}; choose one of {', '.join(TRACKS)}"
    if not 1 <= spec["level"] <= 5:
        yield f"level is {spec['level']}; choose 1 to 5"
    if spec["minutes"] < 1:
        yield f"minutes is {spec['minutes']}; say how many it takes, from 1"
    if not is_editable(spec["editable"]):
        yield f"editable is {spec['editable']!r}; name one Python file, such as train.py"
    if "\n" in spec["alert"].strip():
        yield "alert has several lines; make it one, as a pager shows it"
    for need in spec.get("needs", []):
        if not NEEDS.fullmatch(need):
            yield f"needs {need!r} is unknown; write cuda, ranks:N (2 to 9), onnx, serve, quantize or fork"
    if unknown := set(spec) - _KEYS.keys():
        yield f"unknown key {', '.join(sorted(unknown))}; known are {', '.join(sorted(_KEYS))}"


def _hint_problems(spec: dict[str, Any]) -> Iterator[str]:
    if len(spec["hint"]) != HINTS or not all(_is_table(h, {"text"}) and _texts([h.get("text")]) for h in spec["hint"]):
        ladder = "where to look, what to measure, which mechanism, which API"
        yield f"[[hint]], of which there are {len(spec['hint'])}: write {HINTS}, with nothing but a text each: {ladder}"


def _predict_problems(spec: dict[str, Any]) -> Iterator[str]:
    for number, predict in enumerate(spec.get("predict", []), 1):
        fits = _is_table(predict, {"question", "choices", "evidence"}) and _texts(
            [predict.get("question"), predict.get("evidence", "none")]
        )
        if not fits or type(predict.get("choices")) is not list or len(predict["choices"]) < 2:
            yield f"[[predict]] {number}: give it a question, two or more choices and, if it is scored, an evidence key"


def _figure_problems(spec: dict[str, Any]) -> Iterator[str]:
    figure = spec["figure"]
    if figure.get("kind") not in FIGURES:
        yield f"[figure] kind is {figure.get('kind')!r}; choose one of {', '.join(FIGURES)}"
    if not _is_filled_array(figure.get("series")):
        yield "[figure] series: list the evidence keys to draw, an array of strings"
    if "labels" in figure and not _is_filled_array(figure["labels"]):
        yield "[figure] labels: write an array of strings, or leave it out"
    for key in ("title", "x", "y", "bound"):
        if not isinstance(figure.get(key, ""), str):
            yield f"[figure] {key}: write a string, or leave it out"
    if unknown := set(figure) - {"kind", "title", "x", "y", "series", "labels", "bound", "log"}:
        yield f"[figure] unknown key {', '.join(sorted(unknown))}; remove it"


def _budget_problems(spec: dict[str, Any]) -> Iterator[str]:
    budget = spec["budget"]
    fits = all(type(v) in (int, float) and 0 < v < math.inf for v in budget.values())
    if set(budget) != {"cpu_seconds", "memory_mib"} or not fits:
        yield "[budget] must have cpu_seconds and memory_mib, both positive numbers, and nothing else"


def _blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def _texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) and value.strip() for value in values)


def _is_filled_array(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and _texts(value)


def _is_table(value: Any, known: set[str]) -> bool:
    return isinstance(value, dict) and set(value) <= known


def _type_name(value: Any) -> str:
    return _TOML.get(type(value), type(value).__name__)


def _lab_folders(root: Path) -> list[Path]:
    if not (root / "labs").is_dir():
        raise BadLab([Problem(str(root), "has no labs/ folder; a root holds labs/, solutions/ and tests/labs/")])
    return sorted(p for p in (root / "labs").iterdir() if p.is_dir() and p.name.startswith("lab"))


def _checks(path: Path) -> Iterator[Check]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield Check(node.name, _points(node), ast.get_docstring(node) or "")


def _points(node: ast.FunctionDef) -> int:
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "check":
            for keyword in mark.keywords:
                if keyword.arg == "points" and isinstance(keyword.value, ast.Constant):
                    return keyword.value.value
    return 0


def _expects(source: str, word: str) -> frozenset[str]:
    """The names after `# word:` in the first line, commas or not; or one state, whose name may hold blanks."""
    match = re.match(rf"#[ \t]*{word}:(.*)", source)
    text = match.group(1).strip() if match else ""
    return frozenset(text.replace(",", " ").split() if "test_" in text else [text] if text else [])


def _variant(path: Path, kind: str) -> Variant:
    """A right fix tells its reason in its first line, a wrong one in the second; both may say `# needs: cuda` below."""
    source = path.read_text("utf-8")
    head = source.splitlines()[:5]
    said = re.match(r"#\s*right:(.*)" if kind == "right" else r"#\s*wrong:.*\n#(?!\s*needs:)(.*)", source)
    expects = _expects(source, "wrong") if kind == "wrong" else frozenset()
    return Variant(path, kind, said[1].strip() if said else "", expects, needs_cuda="# needs: cuda" in head)


def load_module(path: Path, name: str) -> ModuleType:
    """Import the file at `path` under `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
