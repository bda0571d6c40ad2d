"""A new lab: files that `verify` accepts but for the parts to fill in, each of which is marked TODO.

templates/example    a small real failure with its fixes: it runs at once, and shows the form of every part
templates/script     the same parts round somebody's own script, which measure nothing yet

A template that is called train.py, or lies in right/ or wrong/, is a patch: its first comments and its functions, which
take the place of those of the same name in the example's base.py or in the script.
"""

import ast
import json
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from breakfix.catalog import Lab, default_roots, is_editable, read_lab

TEMPLATES = Path(__file__).with_name("templates")
FOLDERS = {"lab": "labs", "solution": "solutions", "tests": "tests/labs"}  # of a template: of a root
LONGEST_NAME = 60


class ScaffoldError(ValueError):
    """A lab cannot be made as it was asked for; the message says what to ask for instead."""


def new_lab(name: str, root: Path, number: int | None = None, script: Path | None = None) -> Lab:
    """Write the lab `name` into `root`, from the example or round `script`. Raises ScaffoldError; never overwrites."""
    _demand_name(name)
    root = Path(root).resolve()
    base = _script(Path(script)) if script else (TEMPLATES / "example" / "base.py").read_text("utf-8")
    editable = Path(script).name if script else "train.py"
    lab_id = f"lab{_number(root, number):02d}"
    folder = f"{lab_id}_{name}"
    words = {
        "id": lab_id,
        "folder": folder,
        "title": name.replace("_", " ").capitalize(),
        "editable": editable,
        "stubs": _stubs(base),
        'function(subject, "@functions@")': _lookups(base),
    }
    for path, text in _files(TEMPLATES / ("script" if script else "example"), base):
        target = root / FOLDERS[path.parts[0]] / folder / Path(*path.parts[1:])
        _write(target.with_name(editable) if path.name == "train.py" else target, _filled(text, words))
    return read_lab(root / "labs" / folder)


def contract_functions(source: str) -> list[ast.FunctionDef]:
    """The functions of a script that checks may call: those at its top level whose names are public, without main."""
    return [f for f in _functions(source) if not f.name.startswith("_") and f.name != "main"]


# --------------------------------------------------------------------------------------------------- what was asked for


def _demand_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or len(name) > LONGEST_NAME:
        raise ScaffoldError(
            f"{name!r} is no name for a lab; write what a person sees, in lower case, as in loss_is_nan_sometimes"
        )
    if numbered := re.fullmatch(r"lab(\d+)_(.+)", name):
        raise ScaffoldError(f"leave the number out of the name: {numbered[2]} --number {int(numbered[1])}")


def _number(root: Path, wanted: int | None) -> int:
    """The number of a new lab in `root`: free there, in the project and in every root of BREAKFIX_ROOTS."""
    taken = {int(p.name[3:5]): p for each in (*default_roots(), root) for p in _folders(each)}
    if wanted is None:
        after_last = max(taken, default=0) + 1
        wanted = next((n for n in (*range(after_last, 100), *range(100)) if n not in taken), 100)
    if not 0 <= wanted <= 99:
        raise ScaffoldError("a lab's number has two digits, 00 to 99; use --number, or another root")
    if wanted in taken:
        raise ScaffoldError(f"lab{wanted:02d} exists already: {taken[wanted]}; take another number")
    return wanted


def _folders(root: Path) -> Iterator[Path]:
    """Every folder of every lab in `root`, complete or not."""
    return (path for part in FOLDERS.values() for path in (root / part).glob("lab[0-9][0-9]_*"))


def _script(path: Path) -> str:
    """The source of a script, if it can be a lab's editable file."""
    if not is_editable(path.name):
        raise ScaffoldError(f"{path.name} is no name for a lab's file; rename it, as in train.py")
    try:
        source = path.read_text("utf-8")
        ast.parse(source)
    except OSError as error:
        raise ScaffoldError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ScaffoldError(f"{path} is not a text file in UTF-8: {error}") from None
    except SyntaxError as error:
        raise ScaffoldError(f"{path} is not valid Python: line {error.lineno}: {error.msg}") from None
    return source


# ------------------------------------------------------------------------------------------------------ what is written


def _files(templates: Path, base: str) -> Iterator[tuple[Path, str]]:
    """(path, text) of every template; patches already applied to `base`."""
    for file in sorted(p for part in FOLDERS for p in (templates / part).rglob("*.*")):
        text = file.read_text("utf-8")
        is_patch = file.name == "train.py" or file.parent.name in ("right", "wrong")
        yield file.relative_to(templates), _patched(base, text) if is_patch else text


def _patched(base: str, patch: str) -> str:
    """`base` under the first comments of `patch`, with the functions of `patch` in place of its own."""
    comments = "".join(takewhile(lambda line: line.startswith("#"), patch.splitlines(keepends=True)))
    replacements = {f.name: ast.get_source_segment(patch, f) for f in _functions(patch)}
    lines = base.splitlines(keepends=True)
    for function in reversed(_functions(base)):  # from the end, so that line numbers stay true
        if function.name in replacements:
            lines[function.lineno - 1 : function.end_lineno] = [replacements[function.name] + "\n"]
    return comments + "".join(lines)


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word if "@" in word else f"@{word}@", value)
    return text


def _functions(source: str) -> list[ast.FunctionDef]:
    return [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]


def _signature(function: ast.FunctionDef) -> str:
    """As in "train(steps: int) -> list"."""
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{function.name}({ast.unparse(function.args)}){returns}"


def _stubs(source: str) -> str:
    """The contract as a README shows it: a comment and a stub for each function."""
    stubs = []
    for function in contract_functions(source):
        says = (ast.get_docstring(function) or "TODO: what it takes and what it returns").splitlines()[0]
        stubs.append(f"# {says}\ndef {_signature(function)}: ...")
    return "\n\n".join(stubs) or "# TODO: def train(steps: int) -> list[float]: ..."


def _lookups(source: str) -> str:
    """The lines of measure.py that fetch each function from the subject."""
    lines = [
        f"{f.name} = function(subject, {json.dumps(_signature(f), ensure_ascii=False)})"
        for f in contract_functions(source)
    ]
    return "\n    ".join(lines) or '# TODO: train = function(subject, "train(steps: int) -> list[float]")'


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
