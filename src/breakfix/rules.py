"""What can be seen wrong in a lab's files without running them; each message says what its author should do.

`breakfix.verify` runs what these rules let through.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from breakfix.catalog import Catalog, Lab, Problem, Variant
from breakfix.verdict import FAILED, PASSED, STATES

MIN_RIGHT, MIN_WRONG, MIN_CHECKS, POINTS = 3, 5, 3, 10
STARTER_LINES = range(30, 121)
README_PARTS = ("The code", "Reproduce", "What you may change", "The contract", "What is checked")
SOLUTION_PARTS = (
    "Cause", "Evidence", "Other right fixes and what they cost", "Wrong fixes and what they break",
    "In your own code", "In the wild", "What the articles say",
)  # fmt: skip
LIBRARIES = {
    "torch", "torchvision", "torchmetrics", "numpy", "onnx", "onnxruntime", "onnxscript", "PIL", "fastapi", "httpx",
    "pydantic", "uvicorn", "torchao", "packaging",
}  # fmt: skip


def content_problems(lab: Lab, catalog: Catalog) -> Iterator[Problem]:
    """What can be seen wrong in the lab's files without running them."""
    for unusable in (_missing_files, _unreadable_files):
        if problems := list(unusable(lab)):
            yield from problems
            return  # the rules below read these files
    yield from _readme_problems(lab)
    yield from _starter_problems(lab)
    yield from _measure_problems(lab)
    yield from _check_problems(lab)
    for variant in lab.variants:
        yield from _variant_problems(lab, variant)
    yield from _count_problems(lab)
    yield from _prerequisite_problems(lab, catalog)


def parts_to_fill_in(lab: Lab) -> list[Problem]:
    """Every line that still says TODO, as `breakfix new` marks what the author must replace."""
    lines = [
        (f"{shown(lab, path)}:{number}", line)
        for path in _texts_of(lab)
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1)
    ]
    found = [(where, match[1].rstrip('",')) for where, line in lines if (match := re.search(r"\bTODO\b:? *(.*)", line))]
    return [Problem(at, f"part {i} of {len(found)} to fill in: {text}") for i, (at, text) in enumerate(found, 1)]


def listed(several: Iterable[str]) -> str:
    """Names as problems list them."""
    return ", ".join(sorted(several))


def shown(lab: Lab, path: Path) -> str:
    """A path as problems name it: from the lab's root on."""
    return path.relative_to(lab.root).as_posix()


def _texts_of(lab: Lab) -> list[Path]:
    """Every file of the lab that its author writes."""
    folders = (lab.path, lab.solution_path, lab.tests_path)
    return [p for folder in folders for p in sorted(folder.rglob("*")) if p.suffix in (".md", ".py", ".toml")]


def _missing_files(lab: Lab) -> Iterator[Problem]:
    solution = lab.solution_path / "README.md"
    for path in (lab.starter, lab.path / "README.md", lab.path / "measure.py", lab.solution, solution, lab.checks_path):
        if not path.is_file():
            yield Problem(shown(lab, path), "is missing; write it (`breakfix new` shows its form)")


def _unreadable_files(lab: Lab) -> Iterator[Problem]:
    for path in _texts_of(lab):
        try:
            source = path.read_bytes().decode("utf-8")
            if path.suffix == ".py":
                ast.parse(source)
        except SyntaxError as error:
            yield Problem(f"{shown(lab, path)}:{error.lineno}", f"is not valid Python: {error.msg}; correct it")
        except ValueError as error:
            yield Problem(shown(lab, path), f"is not a text file in UTF-8: {error}; save it as one")


def _readme_problems(lab: Lab) -> Iterator[Problem]:
    readme, solution = lab.path / "README.md", lab.solution_path / "README.md"
    for path, parts, placeholder in ((readme, README_PARTS, "{alert}"), (solution, SOLUTION_PARTS, "{evidence}")):
        text, where = path.read_text("utf-8"), shown(lab, path)
        found = tuple(re.findall(r"^## (.+?)\s*$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M))
        if found != parts:
            yield Problem(where, f"has the parts {', '.join(found) or 'none'}; write exactly {', '.join(parts)}")
        if placeholder not in text:
            yield Problem(where, f"lacks {placeholder}; put it where the text of lab.toml or of a run belongs")
    if not readme_commands(lab):
        command = f"`$ python {lab.editable}`"
        yield Problem(shown(lab, readme), f"has no command; show in a ```console block how to reproduce it: {command}")


def _starter_problems(lab: Lab) -> Iterator[Problem]:
    source, where = lab.starter.read_text("utf-8"), shown(lab, lab.starter)
    if (lines := len(source.splitlines())) not in STARTER_LINES:
        yield Problem(where, f"has {lines} lines; keep it between {STARTER_LINES[0]} and {STARTER_LINES[-1]}")
    for name in sorted(_imports(source) - LIBRARIES - sys.stdlib_module_names):
        yield Problem(where, f"imports {name}; a lab's file uses torch, its friends and at most breakfix.data")


def _imports(source: str) -> set[str]:
    """The packages that `source` imports, breakfix.data apart; a relative import as it begins, with dots."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {f"breakfix.{alias.name}" for alias in node.names} if module == "breakfix" else {module}
    strangers = {name for name in found if not f"{name}.".startswith("breakfix.data.")}
    return {name if name.startswith(".") else name.partition(".")[0] for name in strangers}


def _measure_problems(lab: Lab) -> Iterator[Problem]:
    path = lab.path / "measure.py"
    defined = {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}
    for name, form in (("inputs", "inputs(seed)"), ("measure", "measure(subject, seed, device)")):
        if name not in defined:
            yield Problem(shown(lab, path), f"defines no {name}; write {form}")


def _check_problems(lab: Lab) -> Iterator[Problem]:
    where = shown(lab, lab.checks_path)
    for check in lab.checks:
        if not check.says:
            yield Problem(f"{where}::{check.name}", "has no docstring; say what it demands and why it matters")
        if not _is_worth_something(check.points):
            yield Problem(
                f"{where}::{check.name}", "is worth nothing; mark it with @check(points=N), an integer from 1"
            )
    if (total := sum(c.points for c in lab.checks if _is_worth_something(c.points))) != POINTS:
        yield Problem(where, f"is worth {total} points in all; make it {POINTS}")
    if len(lab.checks) < MIN_CHECKS:
        kinds = "the symptom is gone, the cause is gone, nothing else broke"
        yield Problem(where, f"has {len(lab.checks)} checks; write {MIN_CHECKS} at least: {kinds}")
    yield from _name_problems(lab, f"{where}, first line `# starter:`", lab.starter_fails)


def _is_worth_something(points: object) -> bool:
    return type(points) is int and points >= 1


def _variant_problems(lab: Lab, variant: Variant) -> Iterator[Problem]:
    where = shown(lab, variant.path)
    if not variant.reason:
        form = "`# right: what it does and what it costs`" if variant.kind == "right" else "a comment in line 2"
        yield Problem(where, f"does not say why; write {form}")
    if variant.kind == "wrong":
        yield from _name_problems(lab, f"{where}, first line `# wrong:`", variant.expects)


def _name_problems(lab: Lab, where: str, named: frozenset[str]) -> Iterator[Problem]:
    known = {check.name for check in lab.checks} | set(STATES) - {PASSED, FAILED}
    if not named:
        yield Problem(where, f"names nothing; name what must fail: {listed(known)}")
    for name in sorted(named - known):
        yield Problem(where, f"names {name}, which is neither a check nor a state; name some of {listed(known)}")


def _count_problems(lab: Lab) -> Iterator[Problem]:
    for kind, least in (("right", MIN_RIGHT), ("wrong", MIN_WRONG)):
        if (count := sum(v.kind == kind for v in lab.variants)) < least:
            yield Problem(f"{shown(lab, lab.tests_path)}/{kind}", f"holds {count} variants; write at least {least}")


def _prerequisite_problems(lab: Lab, catalog: Catalog) -> Iterator[Problem]:
    unknown = set(lab.prerequisites) - {other.id for other in catalog}
    known = {other.id for other in (*catalog, *Catalog.read())} if unknown else set()  # a team may build on our labs
    for name in sorted(unknown - known):
        yield Problem(shown(lab, lab.path / "lab.toml"), f"prerequisite {name} is no lab; there are {listed(known)}")


def readme_commands(lab: Lab) -> list[str]:
    """The lines that start with `$ ` in the README's console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```", (lab.path / "README.md").read_text("utf-8"), re.M | re.S)
    lines = [line[2:].strip() for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line for line in lines if line]
