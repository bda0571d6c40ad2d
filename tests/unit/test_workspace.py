"""The learner's folder: nothing of hers is lost, and what is remembered survives people and processes."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from breakfix.cache import digest
from breakfix.catalog import Catalog, UnknownLab
from breakfix.workspace import (
    CHANGED,
    NOT_STARTED,
    PASSED,
    STARTED,
    STATE_FILE,
    Workspace,
    WorkspaceError,
    content_of,
    shown,
)

ROOT = Path(__file__).parents[1] / "fixtures" / "learner_root"
CATALOG = Catalog.read(ROOT)
LAB, SECOND = CATALOG["lab91"], CATALOG["lab92"]


@pytest.fixture(params=["plain", "with blanks", "课程 ümläut ☃", "[brackets] and 'quotes'"])
def root(request, tmp_path, monkeypatch):
    folder = tmp_path / request.param
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def space(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Workspace.find()


def again() -> Workspace:
    """The workspace as another command would see it."""
    return Workspace.find()


def passed(space, lab, source=None):
    """Record that the file, or a source that is written to it first, has passed."""
    if source is not None:
        space.file(lab).write_text(source, "utf-8")
    space.record_pass(lab, content_of(space.file(lab)), seed=7)


# ------------------------------------------------------------------------------------------------------------- start


def test_start_gives_the_starter_and_the_readme_with_its_alert(root):
    file = Workspace.find().start(LAB)
    assert file == root / "lab91" / "sums.py"
    assert file.read_bytes() == LAB.starter.read_bytes()
    assert LAB.alert in (file.parent / "README.md").read_text("utf-8")
    assert sorted(p.name for p in root.rglob("*")) == ["README.md", "breakfix.json", "lab91", "sums.py"]


def test_start_never_overwrites(space):
    file = space.start(LAB)
    file.write_text("mine")
    (file.parent / "README.md").write_text("my notes")
    space.start(LAB)
    again().start(LAB)
    assert file.read_text() == "mine"
    assert (file.parent / "README.md").read_text() == "my notes"


def test_start_gives_what_else_the_lab_shows_and_not_what_measures_it(tmp_path, monkeypatch):
    shutil.copytree(ROOT, tmp_path / "root")
    folder = tmp_path / "root" / "labs" / "lab91_total_is_off"
    (folder / "production.py").write_text("how others call it")
    (folder / ".hidden").touch()
    (folder / "__pycache__").mkdir()
    monkeypatch.chdir(tmp_path)
    file = Workspace.find().start(Catalog.read(tmp_path / "root")["lab91"])
    assert sorted(p.name for p in file.parent.iterdir()) == ["README.md", "production.py", "sums.py"]
    assert (file.parent / "production.py").read_text() == "how others call it"


def test_start_fills_in_what_is_missing(space):
    file = space.start(LAB)
    (file.parent / "README.md").unlink()
    file.write_text("mine")
    space.start(LAB)
    assert (file.parent / "README.md").is_file()
    assert file.read_text() == "mine"


def test_start_keeps_the_first_date(space):
    space.start(LAB)
    with space.changing(LAB) as note:
        note["started"] = "2020-01-01"
    again().start(LAB)
    assert again().note(LAB)["started"] == "2020-01-01"


def test_start_leaves_a_link_alone(space, tmp_path):
    target = tmp_path / "elsewhere.py"
    target.write_text("mine, kept elsewhere")
    (tmp_path / "lab91").mkdir()
    (tmp_path / "lab91" / "sums.py").symlink_to(target)
    assert space.start(LAB).is_symlink()
    assert target.read_text() == "mine, kept elsewhere"


@pytest.mark.parametrize("what", ["broken link", "folder"])
def test_start_names_what_is_in_the_way_of_the_file(space, tmp_path, what):
    (tmp_path / "lab91").mkdir()
    file = tmp_path / "lab91" / "sums.py"
    file.mkdir() if what == "folder" else file.symlink_to(tmp_path / "nowhere.py")
    with pytest.raises(WorkspaceError, match=r"sums.py is in the way.*move it"):
        space.start(LAB)
    assert file.is_symlink() or file.is_dir()
    assert not (tmp_path / "nowhere.py").exists()


def test_start_names_a_file_where_the_folder_belongs(space, tmp_path):
    (tmp_path / "lab91").write_text("a note of mine")
    with pytest.raises(WorkspaceError, match=r"lab91 is in the way"):
        space.start(LAB)
    assert (tmp_path / "lab91").read_text() == "a note of mine"


def test_a_lab_without_its_files_costs_nothing(space, tmp_path):
    broken = Catalog.read(ROOT)["lab91"]
    object.__setattr__(broken, "root", tmp_path / "no such root")
    file = space.start(LAB)
    file.write_text("mine")
    with pytest.raises(FileNotFoundError):
        space.reset(broken)
    assert file.read_text() == "mine"


# ------------------------------------------------------------------------------------------------------------- reset


def test_reset_keeps_a_copy_each_time(root):
    space = Workspace.find()
    file = space.start(LAB)
    copies = []
    for text in ("first", "second", "third"):  # within one second, so that the names would be the same
        file.write_text(text)
        copies.append(space.reset(LAB))
        assert file.read_bytes() == LAB.starter.read_bytes()
    assert [copy.read_text() for copy in copies] == ["first", "second", "third"]
    assert all(copy.parent == file.parent and copy.suffix == ".py" for copy in copies)


def test_reset_of_nothing_is_a_start(space):
    assert space.reset(LAB) is None
    assert space.file(LAB).is_file()


def test_reset_of_a_link_moves_the_link_and_not_its_target(space, tmp_path):
    target = tmp_path / "elsewhere.py"
    target.write_text("mine")
    file = space.start(LAB)
    file.unlink()
    file.symlink_to(target)
    kept = space.reset(LAB)
    assert target.read_text() == "mine"
    assert kept.read_text() == "mine"
    assert not file.is_symlink()


# ------------------------------------------------------------------------------------------------------------- state


def test_done_is_what_the_content_says(space):
    file = space.start(LAB)
    assert space.status(LAB) == STARTED
    passed(space, LAB, "a fix")
    assert (space.status(LAB), again().status(LAB)) == (PASSED, PASSED)
    file.write_text("a fix, and more")
    assert space.status(LAB) == CHANGED
    file.write_text("a fix")
    assert space.status(LAB) == PASSED
    file.unlink()
    assert space.status(LAB) == NOT_STARTED
    assert not space.passed(LAB)


def test_a_pass_is_of_what_was_judged_and_not_of_what_was_saved_meanwhile(space):
    file = space.start(LAB)
    file.write_text("judged")
    content = content_of(file)
    file.write_text("saved while that was being judged")
    space.record_pass(LAB, content, seed=1)
    assert space.status(LAB) == CHANGED


def test_a_pass_is_taken_back_for_that_content_only(space):
    space.start(LAB)
    passed(space, LAB, "a fix")
    space.take_back_pass(LAB, digest(b"something else"))
    assert space.passed(LAB)
    space.take_back_pass(LAB, digest(b"a fix"))
    assert space.status(LAB) == STARTED


def test_hints_are_counted_up_to_the_last(space):
    assert [space.next_hint(LAB) for _ in range(6)] == [1, 2, 3, 4, 4, 4]
    assert again().note(LAB)["hints"] == 4


def test_the_first_sight_of_the_solution_counts(space):
    with space.changing(LAB) as note:
        note["solution_seen"] = "2020-01-01"
    space.record_solution_seen(LAB)
    assert again().note(LAB)["solution_seen"] == "2020-01-01"


def test_the_state_file_is_one_small_readable_file(root):
    space = Workspace.find()
    space.start(LAB)
    passed(space, LAB)
    text = (root / STATE_FILE).read_text("utf-8")
    assert len(text) < 1000
    assert text.startswith('{\n  "version": 1,\n  "labs": {\n    "lab91": {\n')
    assert [p.name for p in root.iterdir() if p.is_file()] == [STATE_FILE]


def test_losing_the_state_file_loses_only_that(space, tmp_path, monkeypatch):
    file = space.start(LAB)
    passed(space, LAB, "a fix")
    (tmp_path / STATE_FILE).unlink()
    monkeypatch.chdir(tmp_path / "lab91")  # and from inside a lab's folder the workspace is still found
    assert again().root == tmp_path
    assert again().start(LAB) == file
    assert file.read_text() == "a fix"
    assert again().status(LAB) == STARTED


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("<<<<<<< HEAD\n{}", "cannot be read"),
        ("\x00\x01", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "holds no labs"),
        ("null", "holds no labs"),
        ('{"labs": []}', "holds no labs"),
        ('{"labs": {"lab91": 3}}', "lab91"),
        ('{"labs": {"lab91": {"hints": "two"}}}', "hints"),
        ('{"labs": {"lab91": {"hints": true}}}', "hints"),
        ('{"labs": {"lab91": {"passed": "yes"}}}', "passed"),
        ('{"labs": {"lab91": {"predictions": {}}}}', "predictions"),
    ],
)
def test_a_broken_state_file_is_named_and_left_alone(tmp_path, monkeypatch, text, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / STATE_FILE).write_text(text, "utf-8")
    with pytest.raises(WorkspaceError, match=says) as caught:
        Workspace.find()
    assert str(tmp_path / STATE_FILE) in str(caught.value)
    assert "move it away" in str(caught.value)
    assert (tmp_path / STATE_FILE).read_text("utf-8") == text


def test_bytes_that_are_no_text_are_a_broken_state_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / STATE_FILE).write_bytes(b"\xff\xfe{}")
    with pytest.raises(WorkspaceError, match="cannot be read"):
        Workspace.find()


def test_a_state_file_that_breaks_under_way_is_not_written_over(space, tmp_path):
    space.start(LAB)
    (tmp_path / STATE_FILE).write_text("{ half")
    with pytest.raises(WorkspaceError):
        space.next_hint(LAB)
    assert (tmp_path / STATE_FILE).read_text() == "{ half"


def test_a_state_file_from_the_future_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = json.dumps({"version": 2, "labs": ["another form"]})
    (tmp_path / STATE_FILE).write_text(text)
    with pytest.raises(WorkspaceError, match="newer breakfix"):
        Workspace.find()
    assert (tmp_path / STATE_FILE).read_text() == text


def test_what_this_version_does_not_know_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    theirs = {"version": 1, "labs": {"lab91": {"colour": "blue"}, "lab77": {"hints": 1}}, "course": "autumn"}
    (tmp_path / STATE_FILE).write_text(json.dumps(theirs))
    Workspace.find().next_hint(LAB)
    state = json.loads((tmp_path / STATE_FILE).read_text())
    assert state["labs"]["lab91"] == {"colour": "blue", "hints": 1}
    assert (state["labs"]["lab77"], state["course"]) == ({"hints": 1}, "autumn")


def test_a_byte_order_mark_is_no_fault(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / STATE_FILE).write_bytes(b"\xef\xbb\xbf" + b'{"version": 1, "labs": {"lab91": {"hints": 2}}}')
    assert Workspace.find().note(LAB) == {"hints": 2}


def test_a_linked_state_file_stays_a_link(tmp_path, monkeypatch):
    (tmp_path / "synced").mkdir()
    (tmp_path / "work").mkdir()
    target = tmp_path / "synced" / "progress.json"
    target.write_text('{"version": 1, "labs": {}}')
    (tmp_path / "work" / STATE_FILE).symlink_to(target)
    monkeypatch.chdir(tmp_path / "work")
    Workspace.find().next_hint(LAB)
    assert (tmp_path / "work" / STATE_FILE).is_symlink()
    assert json.loads(target.read_text())["labs"] == {"lab91": {"hints": 1}}


def test_nothing_is_written_when_nothing_has_changed(space, tmp_path):
    space.start(LAB)
    before = os.stat(tmp_path / STATE_FILE)
    space.start(LAB)
    after = os.stat(tmp_path / STATE_FILE)
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_two_terminals_see_what_the_other_remembered(space):
    """`watch` runs for hours while hints are taken in another terminal."""
    space.start(LAB)
    other = again()
    assert [other.next_hint(LAB), space.next_hint(LAB), other.next_hint(LAB)] == [1, 2, 3]
    passed(space, LAB)
    other.next_hint(LAB)
    assert again().passed(LAB)


SAVER = """
import sys
from pathlib import Path
from breakfix.catalog import Catalog
from breakfix.workspace import Workspace
labs = Catalog.read(Path(sys.argv[1]))
for i in range(40):
    with Workspace.find().changing(labs["lab91"]) as note:
        note[f"{sys.argv[2]}{i}"] = i
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a folder cannot be locked there")
def test_processes_that_save_at_the_same_time_lose_nothing(space, tmp_path):
    processes = [subprocess.Popen([sys.executable, "-c", SAVER, str(ROOT), name], cwd=tmp_path) for name in "abc"]
    assert [p.wait(timeout=100) for p in processes] == [0, 0, 0]
    assert len(again().note(LAB)) == 3 * 40
    assert [p.name for p in tmp_path.iterdir()] == [STATE_FILE]


@pytest.fixture
def read_only():
    """A folder that this process may read and not write; pytest's own lies where nobody else may go."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / STATE_FILE).write_text('{"version": 1, "labs": {}}')
        os.chmod(folder, 0o555)
        root = os.geteuid() == 0
        if root:  # who may write everywhere has to become somebody who may not
            os.seteuid(65534)
        yield folder
        if root:
            os.seteuid(0)
        os.chmod(folder, 0o755)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no such rights there")
def test_a_read_only_folder_says_so_and_stays_as_it_is(read_only):
    space = Workspace.find(read_only)
    for change in (lambda: space.start(LAB), lambda: space.next_hint(LAB), lambda: space.reset(LAB)):
        with pytest.raises(PermissionError) as caught:
            change()
        assert str(read_only) in str(caught.value.filename)
    assert os.listdir(read_only) == [STATE_FILE]
    assert (read_only / STATE_FILE).read_text() == '{"version": 1, "labs": {}}'


# ------------------------------------------------------------------------------------------------------ which lab, next


def test_the_lab_is_the_one_of_the_current_folder(root, monkeypatch):
    space = Workspace.find()
    space.start(LAB)
    assert space.lab_here(CATALOG) is None
    (root / "lab91" / "deeper").mkdir()
    for inside in (root / "lab91", root / "lab91" / "deeper"):
        monkeypatch.chdir(inside)
        assert again().root == root
        assert again().lab_here(CATALOG) == LAB
        assert again().lab_here(CATALOG, ".") == LAB
        assert again().lab_here(CATALOG, "lab92") == SECOND


@pytest.mark.parametrize("name", ["lab91", "91", "lab91_total_is_off", "lab91/", "./lab91", "../x/lab91"])
def test_a_lab_goes_by_its_id_its_number_and_its_folder(space, name):
    assert space.lab_here(CATALOG, name) == LAB


def test_an_unknown_name_says_which_there_are(space):
    with pytest.raises(UnknownLab, match="lab91, lab92"):
        space.lab_here(CATALOG, "lab12")


def test_a_folder_above_the_workspace_names_no_lab(tmp_path, monkeypatch):
    """Accounts of a course are called lab91 too, and so are folders called 91."""
    for name in ("lab91", "91"):
        (tmp_path / name / "work").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name / "work")
        assert Workspace.find().lab_here(CATALOG) is None
        monkeypatch.chdir(tmp_path / name)
        assert Workspace.find().root == tmp_path / name


def test_the_next_lab_waits_for_its_prerequisites(space):
    labs = [SECOND, LAB]  # the second names the first as its prerequisite
    assert space.next_lab(labs) == LAB
    space.start(LAB)
    passed(space, LAB)
    assert space.next_lab(labs) == SECOND
    space.start(SECOND)
    passed(space, SECOND)
    assert space.next_lab(labs) is None


def test_prerequisites_advise_and_never_block(space):
    assert space.next_lab([SECOND]) == SECOND


# --------------------------------------------------------------------------------------------------------------- diff


def test_diff_is_from_mine_to_the_other(space):
    space.start(LAB)
    lines = space.diff(LAB, LAB.solution, "solution")
    assert lines[:2] == ["--- lab91/sums.py", "+++ solution"]
    assert "-    return float(sum(values[1:]))" in lines
    assert "+    return float(sum(values))" in lines


def test_diff_bears_any_bytes(space):
    space.start(LAB).write_bytes("größer\n".encode("latin-1"))
    assert space.diff(LAB, LAB.solution, "solution")[:1] == ["--- lab91/sums.py"]


def test_paths_are_shown_from_here(space, tmp_path, monkeypatch):
    file = space.start(LAB)
    assert shown(file) == str(Path("lab91") / "sums.py")
    monkeypatch.chdir(tmp_path / "lab91")
    assert shown(file) == "sums.py"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert shown(file) == str(file)


def test_a_current_folder_that_is_gone_says_so(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(WorkspaceError, match="removed"):
        Workspace.find()
    monkeypatch.chdir(tmp_path)
