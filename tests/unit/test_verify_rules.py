"""Every rule that needs no run: a good lab is broken in exactly one way, and the report says where and what to do."""

import re
import tomllib

import pytest

from breakfix.catalog import BadLab, Catalog, Lab, read_lab, spec_problems
from breakfix.rules import content_problems, parts_to_fill_in, readme_commands
from breakfix.scaffold import new_lab

TODO = re.compile(r"\bTODO\b:? ?")


@pytest.fixture
def lab(tmp_path) -> Lab:
    """A small lab that keeps every rule."""
    lab = new_lab("scores_depend_on_the_batch", tmp_path / "root", number=90)
    for folder in (lab.path, lab.solution_path, lab.tests_path):
        for file in folder.rglob("*.*"):
            file.write_text(TODO.sub("", file.read_text("utf-8")), "utf-8")
    return lab


@pytest.fixture
def spec(lab) -> dict:
    """What its lab.toml says."""
    return tomllib.loads((lab.path / "lab.toml").read_text("utf-8"))


def file_of(lab: Lab, path: str):
    """The file at `path`, where @ stands for the lab's folder."""
    return lab.root / path.replace("@", lab.folder)


def complaints(lab: Lab, *more: Lab) -> list[str]:
    catalog = Catalog.read(lab.root, *(m.root for m in more))
    return list(map(str, content_problems(read_lab(lab.path), catalog)))


def test_a_good_lab_has_no_problem(lab):
    """The lab that the tests below break has nothing to complain of."""
    assert complaints(lab) == []
    assert parts_to_fill_in(lab) == []


# ------------------------------------------------------------------------------------------------------- contents


FILES = ("labs/@/README.md", "labs/@/train.py", "labs/@/measure.py", "solutions/@/README.md", "solutions/@/train.py")


@pytest.mark.parametrize("path", [*FILES, "tests/labs/@/test_checks.py"])
def test_a_missing_file_is_named(lab, path):
    """Each file that a lab must have, and nothing else: the other rules cannot be asked without it."""
    file_of(lab, path).unlink()
    (told,) = complaints(lab)
    assert told.startswith(path.replace("@", lab.folder) + ": is missing; write it")


@pytest.mark.parametrize(
    "path", [*FILES[1:3], FILES[4], "tests/labs/@/test_checks.py", "tests/labs/@/wrong/sigmoid.py"]
)
def test_a_file_that_is_not_python_is_named_with_its_line(lab, path):
    """One lab's slip of the pen must not end the verification of all others."""
    file = file_of(lab, path)
    lines = len(file.read_text("utf-8").splitlines())
    file.write_text(file.read_text("utf-8") + "def broken(:\n", "utf-8")
    (told,) = complaints(lab)
    assert told.startswith(f"{path.replace('@', lab.folder)}:{lines + 1}: is not valid Python")
    assert told.endswith("; correct it")


@pytest.mark.parametrize("path", ["labs/@/README.md", "tests/labs/@/right/log_softmax.py"])
def test_a_file_that_is_not_utf8_is_named(lab, path):
    """Latin-1 of an old editor is told as such."""
    file_of(lab, path).write_bytes(b"# caf\xe9\n")
    (told,) = complaints(lab)
    assert told.startswith(path.replace("@", lab.folder) + ": is not a text file in UTF-8")
    assert "save it as one" in told


README, STARTER, MEASURE, TOML = "labs/@/README.md", "labs/@/train.py", "labs/@/measure.py", "labs/@/lab.toml"
SOLUTION, CHECKS = "solutions/@/README.md", "tests/labs/@/test_checks.py"
RIGHT, WRONG = "tests/labs/@/right/log_softmax.py", "tests/labs/@/wrong/sigmoid.py"
STARTERS_LINE, WRONGS_LINE = CHECKS + ", first line `# starter:`", WRONG + ", first line `# wrong:`"
DELETED = None
# name: (file, what is replaced in it, by what, where the complaint is, what it says)
BROKEN = {
    "a part is missing": (README, "## What is checked", "", README, "write exactly The code, Reproduce"),
    "a part too many": (README, "## Reproduce", "## Hints\n\n## Reproduce", README, "write exactly The code"),
    "another order": (README, "## The code", "## Reproduce", README, "has the parts Reproduce, Reproduce"),
    "no part at all": (README, "## ", "", README, "has the parts none; write exactly"),
    "no alert": (README, "{alert}", "page", README, "lacks {alert}; put it where"),
    "no command": (README, r"\$ python", "python", README, "has no command; show in a ```console block"),
    "a command in no block": (README, "```console", "```", README, "how to reproduce it: `$ python train.py`"),
    "a part of the solution is missing": (SOLUTION, "## Cause", "", SOLUTION, "write exactly Cause"),
    "no evidence in the solution": (SOLUTION, "{evidence}", "", SOLUTION, "lacks {evidence}; put it where"),
    "the starter is short": (STARTER, r"(?s)def predict.*", "", STARTER, "keep it between 30 and 120"),
    "the starter is long": (STARTER, r"\Z", "#\n" * 80, STARTER, "lines; keep it between 30 and 120"),
    "a strange import": (STARTER, "import argparse", "import pandas", STARTER, "imports pandas; a lab's file uses"),
    "an import of breakfix": (STARTER, "import argp.*", "from breakfix import checks", STARTER, "imports breakfix; a"),
    "an import from beside": (STARTER, "import argp.*", "from . import x", STARTER, "imports .; a lab's file uses"),
    "no inputs": (MEASURE, "def inputs", "def _inputs", MEASURE, "defines no inputs; write inputs(seed)"),
    "no measure": (MEASURE, "def measure", "def _m", MEASURE, "write measure(subject, seed, device)"),
    "no docstring": (
        CHECKS,
        r'    """The prob.*\n',
        "",
        CHECKS + "::test_equals_float64",
        "say what it demands and why",
    ),
    "too many points": (CHECKS, "points=5", "points=6", CHECKS, "is worth 11 points in all; make it 10"),
    "two right variants": (RIGHT, DELETED, "", "tests/labs/@/right", "holds 2 variants; write at least 3"),
    "four wrong variants": (WRONG, DELETED, "", "tests/labs/@/wrong", "holds 4 variants; write at least 5"),
    "right without a reason": (RIGHT, r"\A.*\n", "", RIGHT, "does not say why; write `# right: what it does"),
    "right with a wrong one's line": (RIGHT, "# right:", "# wrong:", RIGHT, "does not say why; write `# right: what"),
    "wrong without a reason": (WRONG, r"\A(.*\n).*\n", r"\1", WRONG, "does not say why; write a comment in line 2"),
    "a need is no reason": (WRONG, r"\A(.*\n).*\n", r"\1# needs: cuda\n", WRONG, "write a comment in line 2"),
    "wrong names nothing": (WRONG, "wrong: .*", "wrong:", WRONGS_LINE, "names nothing; name what must fail: error"),
    "wrong names no check": (WRONG, "wrong: .*", "wrong: test_x", WRONGS_LINE, "names test_x, which is neither"),
    "wrong must not pass": (WRONG, "wrong: .*", "wrong: passed", WRONGS_LINE, "names passed, which is neither"),
    "the starter names nothing": (
        CHECKS,
        "starter:.*",
        "starter:",
        STARTERS_LINE,
        "names nothing; name what must fail",
    ),
    "the starter names no check": (CHECKS, "starter:.*", "starter: test_x", STARTERS_LINE, "names test_x, which is"),
    "no such prerequisite": (TOML, "sites = ..", 'sites = ["lab89"]', TOML, "prerequisite lab89 is no lab; there are"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_breach_gives_one_complaint(lab, name):
    """It names the file, says what to do, and nothing else is blamed."""
    path, old, new, where, what = BROKEN[name]
    file = file_of(lab, path)
    if old is DELETED:
        file.unlink()
    else:
        assert re.search(old, file.read_text("utf-8"))
        file.write_text(re.sub(old, new, file.read_text("utf-8")), "utf-8")
    (told,) = complaints(lab)
    assert told.startswith(where.replace("@", lab.folder))
    assert what in told


@pytest.mark.parametrize("mark", ["", "@check(3)", "@check(points=0)", "@check(points=2.5)", "@check(points=True)"])
def test_a_check_that_is_worth_nothing(lab, mark):
    """No mark, no keyword, no positive integer: the check is named, and that the sum is wrong."""
    text = lab.checks_path.read_text("utf-8")
    lab.checks_path.write_text(text.replace("@check(points=3)", mark), "utf-8")
    check, total = complaints(lab)
    assert f"{lab.folder}/test_checks.py::test_the_batch_changes_nothing: is worth nothing" in check
    assert "@check(points=N)" in check
    assert "is worth 7 points in all; make it 10" in total


def test_fewer_than_three_checks(lab):
    """The complaint says which three there must be."""
    text = lab.checks_path.read_text("utf-8")
    text = text[: text.index("@check(points=2)")].replace("points=5", "points=7")
    lab.checks_path.write_text(text, "utf-8")
    (lab.tests_path / "wrong" / "left_in_eval.py").write_text("# wrong: error\n# It is not there.\n", "utf-8")
    (told,) = complaints(lab)
    assert "test_checks.py: has 2 checks; write 3 at least: the symptom is gone" in told


@pytest.mark.parametrize(
    "line", ["import breakfix.data", "from breakfix.data import digits", "from breakfix import data"]
)
def test_the_starter_may_read_data(lab, line):
    """Of this package, a lab's file may use the loaders of real data, and no more."""
    lab.starter.write_text(lab.starter.read_text("utf-8").replace("import argparse", line), "utf-8")
    assert complaints(lab) == []


def test_headings_inside_code_are_no_parts(lab):
    """A comment of two hashes in a block of the README is code."""
    file = lab.path / "README.md"
    file.write_text(file.read_text("utf-8").replace("def predict", "## Not a part\ndef predict"), "utf-8")
    assert complaints(lab) == []


def test_a_team_may_build_on_the_projects_labs(lab):
    """A prerequisite may be a lab of the project, although only the team's root is verified."""
    file = lab.path / "lab.toml"
    first = next(iter(Catalog.read())).id
    file.write_text(file.read_text("utf-8").replace("prerequisites = []", f'prerequisites = ["{first}"]'), "utf-8")
    assert complaints(lab) == []


def test_commands_are_those_of_console_blocks(lab):
    """Lines with a dollar sign count, also several; output and empty prompts do not."""
    (lab.path / "README.md").write_text("```console\n$ python train.py\nloss 3\n$ \n$ ls -l\n```\n$ rm\n", "utf-8")
    assert readme_commands(lab) == ["python train.py", "ls -l"]


def test_every_part_to_fill_in_is_told_with_its_line(lab):
    """Wherever the author left a TODO: the file, the line, the text and how many there are."""
    for path, line in ((README, 3), (RIGHT, 1), (TOML, 7)):
        file = file_of(lab, path)
        lines = file.read_text("utf-8").splitlines()
        lines[line - 1] = lines[line - 1] + "  # TODO: say it"
        file.write_text("\n".join(lines), "utf-8")
    told = list(map(str, parts_to_fill_in(lab)))
    assert told == [
        f"labs/{lab.folder}/README.md:3: part 1 of 3 to fill in: say it",
        f"labs/{lab.folder}/lab.toml:7: part 2 of 3 to fill in: say it",
        f"tests/labs/{lab.folder}/right/log_softmax.py:1: part 3 of 3 to fill in: say it",
    ]
    assert complaints(lab) == []  # it is a rule of its own: the lab can be judged all the same


# ------------------------------------------------------------------------------------------------------ lab.toml


REQUIRED = {
    "title": "string", "track": "string", "level": "integer", "minutes": "integer", "editable": "string",
    "alert": "string", "symptoms": "array", "budget": "table", "hint": "array", "figure": "table",
}  # fmt: skip


def test_a_good_spec_has_no_problem(spec):
    assert spec_problems(spec) == []


@pytest.mark.parametrize("key", REQUIRED)
def test_a_required_key_is_missing(spec, key):
    del spec[key]
    assert spec_problems(spec) == [f"{key} is missing; add it, of type {REQUIRED[key]}"]


@pytest.mark.parametrize("key", [*REQUIRED, "needs", "prerequisites", "predict"])
def test_a_key_of_another_type(spec, key):
    """A boolean is none of them, an integer neither, although Python counts it as one."""
    spec[key] = True
    wanted = REQUIRED.get(key, "array")
    assert spec_problems(spec) == [f"{key} is of type boolean; make it {wanted}"]


@pytest.mark.parametrize(
    ("key", "empty"),
    [("title", ""), ("alert", "  "), ("track", ""), ("editable", " "), ("symptoms", []), ("hint", []), ("figure", {})],
)
def test_a_required_key_is_empty(spec, key, empty):
    spec[key] = empty
    assert spec_problems(spec) == [f"{key} is empty; fill it in"]


@pytest.mark.parametrize("key", ["needs", "prerequisites", "symptoms"])
@pytest.mark.parametrize("entry", [7, "", ["nested"]])
def test_lists_hold_text_only(spec, key, entry):
    spec[key] = ["cuda", entry]
    assert spec_problems(spec) == [f"{key} has an entry that is no text; make every one a string"]


HINT = {"text": "Look at the loss."}
PREDICT = {"question": "How many?", "choices": ["1", "2"]}
FIGURE = {"kind": "bars", "series": ["loss"]}
BUDGET = {"cpu_seconds": 5, "memory_mib": 100}


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("track", "magic", "track is 'magic'; choose one of first, memory"),
        ("level", 0, "level is 0; choose 1 to 5"),
        ("level", 6, "level is 6; choose 1 to 5"),
        ("minutes", 0, "minutes is 0; say how many it takes, from 1"),
        ("editable", "src/train.py", "editable is 'src/train.py'; name one Python file, such as train.py"),
        ("editable", "train", "name one Python file"),
        ("editable", "measure.py", "name one Python file"),  # it is the asking side's
        ("alert", "one\ntwo", "alert has several lines; make it one"),
        ("needs", ["tpu"], "needs 'tpu' is unknown; write cuda, ranks:N"),
        ("needs", ["ranks:1"], "needs 'ranks:1' is unknown"),
        ("colour", "red", "unknown key colour; known are alert, budget"),
        ("hint", [HINT] * 3, "[[hint]], of which there are 3: write 4"),
        ("hint", [HINT] * 3 + [{"text": " "}], "with nothing but a text each: where to look"),
        ("hint", [HINT] * 3 + [{"text": 4}], "[[hint]], of which there are 4: write 4"),
        ("hint", [HINT] * 3 + [HINT | {"level": 1}], "with nothing but a text each"),
        ("hint", ["a", "b", "c", "d"], "[[hint]], of which there are 4: write 4"),
        ("predict", [PREDICT, {"choices": ["1", "2"]}], "[[predict]] 2: give it a question, two or more choices"),
        ("predict", [PREDICT | {"choices": ["1"]}], "[[predict]] 1: give it a question"),
        ("predict", [PREDICT | {"choices": "12"}], "[[predict]] 1: give it a question"),
        ("predict", [PREDICT | {"evidence": 3}], "if it is scored, an evidence key"),
        ("predict", [PREDICT | {"answer": "1"}], "[[predict]] 1: give it a question"),
        ("predict", ["loss?"], "[[predict]] 1: give it a question"),
        ("figure", FIGURE | {"kind": "pie"}, "[figure] kind is 'pie'; choose one of curve, timeline, bars, matrix"),
        ("figure", FIGURE | {"kind": ["bars"]}, "choose one of curve"),
        ("figure", {"kind": "bars"}, "[figure] series: list the evidence keys to draw"),
        ("figure", FIGURE | {"series": "loss"}, "[figure] series: list the evidence keys to draw, an array of strings"),
        ("figure", FIGURE | {"series": []}, "[figure] series: list the evidence keys"),
        ("figure", FIGURE | {"labels": [1]}, "[figure] labels: write an array of strings, or leave it out"),
        ("figure", FIGURE | {"bound": 3}, "[figure] bound: write a string, or leave it out"),
        ("figure", FIGURE | {"title": 3}, "[figure] title: write a string, or leave it out"),
        ("figure", FIGURE | {"colour": "red"}, "[figure] unknown key colour; remove it"),
        ("budget", {"cpu_seconds": 5}, "[budget] must have cpu_seconds and memory_mib, both positive numbers"),
        ("budget", BUDGET | {"cpu_seconds": 0}, "both positive numbers"),
        ("budget", BUDGET | {"memory_mib": True}, "both positive numbers"),
        ("budget", BUDGET | {"memory_mib": float("nan")}, "both positive numbers"),
        ("budget", BUDGET | {"cpu_seconds": float("inf")}, "both positive numbers"),  # no bound is no bound
        ("budget", BUDGET | {"disk_mib": 1}, "and nothing else"),
    ],
)
def test_a_value_out_of_range(spec, key, value, told):
    """Each is told alone, with what would be right."""
    (problem,) = spec_problems(spec | {key: value})
    assert told in problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("needs", ["cuda", "ranks:2", "onnx", "serve", "quantize", "fork"]),
        ("predict", [PREDICT | {"evidence": "loss"}]),
        ("figure", FIGURE | {"labels": ["a"], "bound": "b", "x": "", "y": "loss", "title": "Loss", "log": True}),
        ("budget", {"cpu_seconds": 0.5, "memory_mib": 100}),
    ],
)
def test_what_is_allowed(spec, key, value):
    assert spec_problems(spec | {key: value}) == []


# ------------------------------------------------------------------------------------------------ folders and roots


def bad_lab(path) -> str:
    with pytest.raises(BadLab) as caught:
        read_lab(path)
    return str(caught.value)


def test_no_lab_toml(lab):
    (lab.path / "lab.toml").unlink()
    assert re.search(r"lab\.toml: is missing; `breakfix new` writes one", bad_lab(lab.path))


@pytest.mark.parametrize("content", [b"title = ", b"title = 'caf\xe9'"])
def test_lab_toml_cannot_be_read(lab, content):
    (lab.path / "lab.toml").write_bytes(content)
    assert "lab.toml: is not valid TOML" in bad_lab(lab.path)


def test_a_folder_must_be_named_like_a_lab(lab):
    path = lab.path.rename(lab.path.with_name("lab9_Scores"))
    assert "labs/lab9_Scores: name the folder labNN_what_a_person_sees, in lower case" in bad_lab(path)


def test_a_bad_spec_names_its_file(lab):
    file = lab.path / "lab.toml"
    file.write_text(file.read_text("utf-8").replace("level = 1", "level = 9"), "utf-8")
    assert bad_lab(lab.path) == f"labs/{lab.folder}/lab.toml: level is 9; choose 1 to 5"


def test_a_root_without_labs(tmp_path):
    with pytest.raises(BadLab, match=r"has no labs/ folder; a root holds labs/, solutions/ and tests/labs/"):
        Catalog.read(tmp_path)


def test_two_labs_of_one_number(lab, tmp_path):
    """The second is set aside and told; the first stays as it is."""
    other = new_lab("loss_jumps", tmp_path / "other", number=90)
    catalog = Catalog.read(lab.root, other.root)
    assert [each.folder for each in catalog] == [lab.folder]
    assert f"lab90 exists already in {lab.path}; take another number" in str(catalog.bad["lab90_loss_jumps"])


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("# wrong: test_a test_b", {"test_a", "test_b"}),
        ("# wrong: test_a, test_b", {"test_a", "test_b"}),
        ("# wrong: out of memory", {"out of memory"}),
        ("#wrong:error", {"error"}),
        ("# Wrong: error", set()),
    ],
)
def test_what_a_first_line_declares(lab, line, names):
    """Checks with or without commas, or one state, whose name may hold blanks."""
    file = lab.tests_path / "wrong" / "sigmoid.py"
    file.write_text(f"{line}\n# why\n", "utf-8")
    (variant,) = [v for v in lab.variants if v.path == file]
    assert variant.expects == names
