"""The catalog: labs are found, and a faulty one spoils no other. (The rules on lab.toml: test_verify_rules.py.)"""

import os
from pathlib import Path

import pytest

from breakfix.catalog import (
    ROOTS_VARIABLE,
    BadLab,
    Catalog,
    UnknownLab,
    default_roots,
    own_root,
    read_lab,
    spec_problems,
)

SPEC = {
    "title": "The answer is wrong",
    "track": "numerics",
    "level": 2,
    "minutes": 10,
    "editable": "train.py",
    "needs": ["ranks:2", "onnx"],
    "alert": "step 3: answer=41",
    "prerequisites": ["lab00"],
    "symptoms": ["wrong answer"],
    "budget": {"cpu_seconds": 1, "memory_mib": 512.5},
    "hint": [{"text": "where"}, {"text": "what"}, {"text": "which"}, {"text": "how"}],
    "predict": [{"question": "How many?", "choices": ["1", "2"], "evidence": "n"}],
    "figure": {"kind": "curve", "series": ["loss"], "labels": ["loss"], "log": False},
}

TOML = """
title = "The answer is wrong"
track = "numerics"
level = 2
minutes = 10
editable = "train.py"
alert = "step 3: answer=41"
symptoms = ["wrong answer"]
hint = [{text = "where"}, {text = "what"}, {text = "which"}, {text = "how"}]
budget = {cpu_seconds = 1, memory_mib = 512}
figure = {kind = "curve", series = ["loss"]}
"""

CHECKS = '''# starter: test_b test_a
"""What it demands."""

@check(points=3)
def test_a(evidence):
    """A is right."""

@check(points=7)
def test_b(evidence):
    raise RuntimeError("reading a check does not run it")

def helper():
    pass
'''


def add_lab(root: Path, folder: str, toml: str = TOML) -> Path:
    """A lab whose files are just about there."""
    lab, tests = root / "labs" / folder, root / "tests" / "labs" / folder
    for path in (lab, root / "solutions" / folder, tests / "right", tests / "wrong"):
        path.mkdir(parents=True)
    (lab / "lab.toml").write_text(toml, "utf-8")
    (lab / "README.md").write_text("# Title\n> {alert}\n", "utf-8")
    (lab / "measure.py").write_text("BUDGET = 3\n", "utf-8")
    (tests / "test_checks.py").write_text(CHECKS, "utf-8")
    return lab


def without(key: str) -> dict:
    return {k: v for k, v in SPEC.items() if k != key}


# -------------------------------------------------------------------------------------------------- what is in lab.toml


def test_a_whole_spec_has_no_problem():
    assert spec_problems(SPEC) == []


@pytest.mark.parametrize("key", ["needs", "prerequisites", "predict"])
def test_what_may_be_left_out(key):
    assert spec_problems(without(key)) == []


@pytest.mark.parametrize("key", [k for k in SPEC if k not in ("needs", "prerequisites", "predict")])
def test_what_may_not(key):
    (problem,) = spec_problems(without(key))
    assert problem.startswith(f"{key} is missing; add it")


def test_all_problems_are_reported_at_once():
    spec = SPEC | {"level": 9, "track": "magic", "editable": "x"}
    assert len(spec_problems(spec)) == 3


# ------------------------------------------------------------------------------------------------------ folders, files


def test_a_lab_and_its_folders(tmp_path):
    lab = read_lab(add_lab(tmp_path, "lab41_answer_is_wrong"))
    assert (lab.id, lab.root, lab.needs, lab.prerequisites) == ("lab41", tmp_path.resolve(), (), ())
    assert lab.starter == tmp_path.resolve() / "labs/lab41_answer_is_wrong/train.py"
    assert lab.solution == tmp_path.resolve() / "solutions/lab41_answer_is_wrong/train.py"
    assert [(c.name, c.points, c.says) for c in lab.checks] == [("test_a", 3, "A is right."), ("test_b", 7, "")]
    assert lab.starter_fails == {"test_a", "test_b"}
    assert lab.measurement.BUDGET == 3
    assert lab.readme() == "# Title\n> step 3: answer=41\n"
    assert (lab.bounds.cpu_seconds, lab.bounds.wall_seconds, lab.bounds.memory_mib) == (1, 15, 512)


def test_variants(tmp_path):
    lab = read_lab(add_lab(tmp_path, "lab41_answer_is_wrong"))
    (lab.tests_path / "right" / "slow.py").write_text("# right: slow, but right\nx = 1\n", "utf-8")
    (lab.tests_path / "wrong" / "a.py").write_text("# wrong: test_a test_b\n# hides it\n# needs: cuda\n", "utf-8")
    (lab.tests_path / "wrong" / "b.py").write_text("# wrong: out of memory\n# 记忆\n", "utf-8")
    slow, a, b = lab.variants
    assert (slow.kind, slow.reason, slow.expects, slow.needs_cuda) == ("right", "slow, but right", frozenset(), False)
    assert (a.kind, a.reason, a.expects, a.needs_cuda) == ("wrong", "hides it", {"test_a", "test_b"}, True)
    assert (b.reason, b.expects) == ("记忆", {"out of memory"})


@pytest.mark.parametrize("folder", ["lab1_x", "lab41", "lab41_", "lab41_Answer", "lab41-answer", "lab410_x"])
def test_the_folder_has_a_number_and_a_name(tmp_path, folder):
    with pytest.raises(BadLab, match="name the folder labNN_what_a_person_sees, in lower case"):
        read_lab(add_lab(tmp_path, folder))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda toml: toml.unlink(), "is missing; `breakfix new` writes one"),
        (lambda toml: toml.write_text("title = "), "is not valid TOML: "),
        (lambda toml: toml.write_bytes(b'title = "\xff"'), "is not valid TOML: "),
        (lambda toml: (toml.unlink(), toml.mkdir()), "cannot be read (Is a directory); make it a readable file"),
        (lambda toml: toml.write_text(TOML + "level = 3\n"), "is not valid TOML: "),
        (lambda toml: toml.write_text(TOML.replace("level = 2", "level = 7")), "lab41_spoiled/lab.toml: level is 7;"),
    ],
    ids=["missing", "cut short", "not UTF-8", "a folder", "a key twice", "out of range"],
)
def test_one_bad_lab_spoils_no_other(tmp_path, spoil, words):
    add_lab(tmp_path, "lab40_good"), add_lab(tmp_path, "lab42_good_too")
    spoil(add_lab(tmp_path, "lab41_spoiled") / "lab.toml")
    catalog = Catalog.read(tmp_path)
    assert [lab.id for lab in catalog] == ["lab40", "lab42"]
    assert list(catalog.bad) == ["lab41_spoiled"]
    for name in ("lab41", "41", "lab41_spoiled"):
        with pytest.raises(BadLab) as refusal:
            catalog[name]
        assert words in str(refusal.value)


def test_other_folders_and_files_are_no_labs(tmp_path):
    add_lab(tmp_path, "lab40_good")
    (tmp_path / "labs" / "__pycache__").mkdir()
    (tmp_path / "labs" / "lab99_notes.md").touch()
    assert [lab.id for lab in Catalog.read(tmp_path)] == ["lab40"]


@pytest.mark.parametrize("name", ["lab08", "8", "08", "lab08_answer", "lab08_answer/", "lab08/"])
def test_a_lab_is_found_by_id_number_or_folder(tmp_path, name):
    add_lab(tmp_path, "lab08_answer"), add_lab(tmp_path, "lab80_other")
    assert Catalog.read(tmp_path)[name].folder == "lab08_answer"


@pytest.mark.parametrize("name", ["", "lab", "9", "lab8", "answer", "-8", "²"])
def test_an_unknown_lab_names_those_there_are(tmp_path, name):
    add_lab(tmp_path, "lab08_answer"), add_lab(tmp_path, "lab80_other")
    with pytest.raises(UnknownLab, match="there are lab08, lab80"):
        Catalog.read(tmp_path)[name]


# --------------------------------------------------------------------------------------------------------------- roots


def test_the_projects_own_root_holds_the_model_lab():
    assert Catalog.read(own_root())["lab08"].folder == "lab08_loss_is_nan_sometimes"


def test_further_roots(tmp_path, monkeypatch):
    """A course's or a team's own labs stand beside the project's."""
    add_lab(tmp_path / "course", "lab97_course"), add_lab(tmp_path / "team", "lab96_team")
    monkeypatch.setenv(ROOTS_VARIABLE, os.pathsep.join(map(str, (tmp_path / "course", tmp_path / "team"))) + os.pathsep)
    assert default_roots() == [own_root(), tmp_path / "course", tmp_path / "team"]
    catalog = Catalog.read()
    assert catalog["lab97"].root == (tmp_path / "course").resolve()
    assert {"lab08", "lab96", "lab97"} <= {lab.id for lab in catalog}
    assert [lab.id for lab in catalog] == sorted(lab.id for lab in catalog)


def test_a_clash_of_ids_keeps_the_first_and_says_so(tmp_path):
    first = add_lab(tmp_path / "own", "lab08_answer")
    add_lab(tmp_path / "team", "lab08_something_else"), add_lab(tmp_path / "team", "lab09_fine")
    catalog = Catalog.read(tmp_path / "own", tmp_path / "team")
    assert [lab.folder for lab in catalog] == ["lab08_answer", "lab09_fine"]
    assert catalog["lab08"].path == first.resolve()
    assert f"lab08 exists already in {first.resolve()}; take another number" in str(catalog.bad["lab08_something_else"])
    with pytest.raises(BadLab, match="take another number"):
        catalog["lab08_something_else"]


def test_a_folder_that_is_no_root_is_named(tmp_path):
    with pytest.raises(BadLab, match="has no labs/ folder; a root holds labs/, solutions/ and tests/labs/"):
        Catalog.read(tmp_path)
