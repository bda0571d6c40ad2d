"""`breakfix new` writes complete labs, round an example or somebody's script, and never over anything."""

import re
import stat

import pytest

from breakfix import scaffold
from breakfix.catalog import ROOTS_VARIABLE, Catalog, own_root
from breakfix.rules import content_problems, parts_to_fill_in
from breakfix.scaffold import ScaffoldError, new_lab

SCRIPT = '''\
"""Resample a signal."""
import torch

RATE: int = 4


def resample(x: torch.Tensor, *, rate: int = RATE, mode: str = "a b") -> torch.Tensor:
    """Every `rate`-th value.

    More.
    """
    return _every(x, rate)


def energy(x):
    return (x**2).sum()  # TODO: of the author


def _every(x, rate):
    return x[::rate]


class Signal:
    def resample(self): ...


def main():
    print(resample(torch.ones(8)))


if __name__ == "__main__":
    main()
'''


def contents(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def refused(*args, **options) -> str:
    with pytest.raises(ScaffoldError) as caught:
        new_lab(*args, **options)
    return str(caught.value)


def test_the_example_is_complete(tmp_path):
    """A root of its own with every file of a lab; nothing to complain of but what is to be filled in."""
    lab = new_lab("loss_jumps_at_midnight", tmp_path / "deep" / "root", number=42)
    assert lab.root == tmp_path / "deep" / "root"
    assert lab.folder == "lab42_loss_jumps_at_midnight"
    assert list(content_problems(lab, Catalog.read(lab.root))) == []
    kinds = [v.kind for v in lab.variants]
    assert (kinds.count("right"), kinds.count("wrong")) == (3, 5)
    assert sum(check.points for check in lab.checks) == 10
    assert lab.title == "TODO: Loss jumps at midnight"


def test_every_part_to_replace_is_marked(tmp_path):
    """Each file, each part of both READMEs and each of lab.toml's values that an author must think about has a TODO."""
    lab = new_lab("loss_jumps", tmp_path, number=42)
    marked = {problem.where.rpartition(":")[0] for problem in parts_to_fill_in(lab)}
    assert marked == contents(tmp_path).keys()
    for readme in (lab.path / "README.md", lab.solution_path / "README.md"):
        parts = re.split(r"^## ", readme.read_text("utf-8"), flags=re.M)[1:]
        fixed = ["What you may change"]  # said by the name of the file
        assert [p.splitlines()[0] for p in parts if "TODO" not in p] == [t for t in fixed if readme.parent == lab.path]


@pytest.mark.parametrize("kind", ["example", "script"])
def test_nothing_of_the_templates_is_left(tmp_path, kind):
    """No placeholder stays behind, and all files can be written by the owner, wherever the package is installed."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, "utf-8")
    lab = new_lab("loss_jumps", tmp_path / "root", number=42, script=script if kind == "script" else None)
    for name, content in contents(lab.root).items():
        assert not re.search(rb"@(?!check)\w+@?", content), name
        assert stat.S_IMODE((lab.root / name).stat().st_mode) & 0o600 == 0o600


def test_variants_are_complete_files(tmp_path):
    """A variant is the starter with one function replaced, under the lines that say why."""
    lab = new_lab("loss_jumps", tmp_path, number=42)
    starter = lab.starter.read_text("utf-8").partition("\n")[2]
    for variant in lab.variants:
        text = variant.path.read_text("utf-8").split("\n", 1 if variant.kind == "right" else 2)[-1]
        before, after = starter.partition("def predict")[0], starter.partition("def train")[2]
        assert text.startswith(before)
        assert text.endswith(after)
        assert text != starter


# ----------------------------------------------------------------------------------------------------- from a script


@pytest.fixture
def of_script(tmp_path):
    """A lab made of SCRIPT."""
    script = tmp_path / "resample.py"
    script.write_text(SCRIPT, "utf-8")
    return new_lab("sound_gets_shorter", tmp_path / "root", number=42, script=script)


def test_a_script_becomes_starter_solution_and_variants(of_script):
    """Under its own name, unchanged below the comments that say what to do with it."""
    lab = of_script
    assert lab.editable == "resample.py"
    for path in (lab.starter, lab.solution, *(v.path for v in lab.variants)):
        text = path.read_text("utf-8")
        assert text.endswith(SCRIPT)
        assert "TODO" in text.removesuffix(SCRIPT)
    assert "$ python resample.py" in (lab.path / "README.md").read_text("utf-8")


def test_the_scripts_functions_become_the_contract(of_script):
    """Public functions of its top level with their annotations: no method, no helper, no main."""
    readme = (of_script.path / "README.md").read_text("utf-8")
    stub = "resample(x: torch.Tensor, *, rate: int=RATE, mode: str='a b') -> torch.Tensor"
    assert f"# Every `rate`-th value.\ndef {stub}: ...\n\n# TODO: what it takes" in readme
    assert "def energy(x): ..." in readme
    assert not re.search("_every|main|Signal", readme)
    measure = (of_script.path / "measure.py").read_text("utf-8")
    assert f'    resample = function(subject, "{stub}")\n    energy = function(subject, "energy(x)")\n' in measure


def test_a_script_without_functions_says_what_to_write(tmp_path):
    """Nothing to call: the contract is the author's to write."""
    script = tmp_path / "train.py"
    script.write_text("print(1)\n", "utf-8")
    lab = new_lab("sound_gets_shorter", tmp_path, number=42, script=script)
    assert "# TODO: def train(" in (lab.path / "README.md").read_text("utf-8")
    assert "# TODO: train = function(subject, " in (lab.path / "measure.py").read_text("utf-8")


def test_such_a_lab_has_every_part(of_script):
    """Nothing to complain of but what is to be filled in, if the script is no shorter or longer than a lab's file."""
    assert list(content_problems(of_script, Catalog.read(of_script.root))) == []


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("measure.py", b"x = 1\n", "is no name for a lab's file"),
        ("my-train.py", b"x = 1\n", "is no name for a lab's file; rename it"),
        ("train.sh", b"x = 1\n", "is no name for a lab's file"),
        ("train.py", b"x = = 1\n", "is not valid Python: line 1"),
        ("train.py", b"x = '\xe9'\n", "is not a text file in UTF-8"),
        ("train.py", None, "cannot be read: No such file"),
    ],
)
def test_a_script_that_cannot_be_a_lab(tmp_path, name, content, told):
    """It is refused before anything is written."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert told in refused("loss_jumps", tmp_path / "root", script=tmp_path / name)
    assert not (tmp_path / "root").exists()


# -------------------------------------------------------------------------------------------------- names and numbers


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Loss_jumps",
        "loss-jumps",
        "loss jumps",
        "loss__jumps",
        "_loss",
        "loss_",
        "2_losses",
        "../loss",
        "损失",
        "a" * 61,
    ],
)
def test_a_name_is_lower_case_words(tmp_path, name):
    """What a person sees, in a form that every file system takes; the message shows one."""
    assert "write what a person sees, in lower case, as in loss_is_nan_sometimes" in refused(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_number_in_the_name_is_an_option(tmp_path):
    assert "loss_jumps --number 7" in refused("lab07_loss_jumps", tmp_path)


def test_the_next_number_is_free_everywhere(tmp_path, monkeypatch):
    """Beyond those of the project, of BREAKFIX_ROOTS and of the root itself, complete labs or not."""
    monkeypatch.setattr(scaffold, "default_roots", lambda: [tmp_path / "project", tmp_path / "team"])
    assert new_lab("first", tmp_path / "own").id == "lab01"
    (tmp_path / "project" / "labs" / "lab07_x").mkdir(parents=True)
    assert new_lab("second", tmp_path / "own").id == "lab08"
    (tmp_path / "team" / "solutions" / "lab11_only_a_solution").mkdir(parents=True)
    assert new_lab("third", tmp_path / "own").id == "lab12"
    (tmp_path / "own" / "tests" / "labs" / "lab99_x").mkdir(parents=True)
    assert new_lab("fourth", tmp_path / "own").id == "lab00"  # no number above is left
    assert "labs/lab07_x; take another number" in refused("fifth", tmp_path / "own", number=7).replace("\\", "/")


def test_the_project_and_the_variable_count(tmp_path, monkeypatch):
    """No number is given twice among all labs that this user sees."""
    team = new_lab("theirs", tmp_path / "team", number=93)
    monkeypatch.setenv(ROOTS_VARIABLE, str(team.root))
    taken = {int(path.name[3:5]) for path in (own_root() / "labs").glob("lab[0-9][0-9]_*")} | {93}
    assert int(new_lab("mine", tmp_path / "own").id[3:]) not in taken


@pytest.mark.parametrize("number", [-1, 100])
def test_a_number_has_two_digits(tmp_path, number):
    assert "00 to 99" in refused("loss_jumps", tmp_path, number=number)


@pytest.mark.parametrize("part", ["labs", "solutions", "tests/labs"])
def test_nothing_is_overwritten(tmp_path, part):
    """Whatever of a lab is there already, its number is taken and its files stay as they are."""
    mine = tmp_path / part / "lab42_loss_jumps" / "train.py"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine", "utf-8")
    assert "lab42 exists already" in refused("loss_jumps", tmp_path, number=42)
    assert contents(tmp_path) == {mine.relative_to(tmp_path).as_posix(): b"mine"}


def test_a_file_that_appears_meanwhile_stays(tmp_path, monkeypatch):
    """Two people at once: the second fails, and spoils nothing."""
    new_lab("loss_jumps", tmp_path, number=42)
    before = contents(tmp_path)
    monkeypatch.setattr(scaffold, "_number", lambda root, wanted: wanted)
    with pytest.raises(FileExistsError):
        new_lab("loss_jumps", tmp_path, number=42)
    assert contents(tmp_path) == before
