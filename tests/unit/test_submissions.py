"""What was handed in, read without unpacking, following or running anything."""

import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from breakfix.catalog import Catalog
from breakfix.grading import submissions
from breakfix.grading.submissions import BadRoster, Handin, collect, read_roster

CATALOG = Catalog.read(Path(__file__).parents[1] / "fixtures" / "learner_root")
LABS = [CATALOG["lab91"], CATALOG["lab92"]]
NAMES = [f"{lab.id}/{lab.editable}" for lab in LABS]


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "submissions"
    made.mkdir()
    return made


def write(path: Path, text: str = "x = 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def zipped(path: Path, files: dict[str, str | bytes], **options) -> Path:
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def one(folder: Path, student: str, lab: str = "lab91", roster=None) -> Handin:
    return next(h for h in collect(folder, LABS, roster).handins if (h.student, h.lab) == (student, lab))


def test_folders_and_zips_in_any_mixture(folder):
    write(folder / "ada" / NAMES[0], "a")
    zipped(folder / "bob.zip", {NAMES[0]: "b", "deep/inside/" + NAMES[1]: "c"})
    found = {(h.student, h.lab): h.source for h in collect(folder, LABS).handins}
    want = {("ada", "lab91"): b"a", ("ada", "lab92"): None, ("bob", "lab91"): b"b", ("bob", "lab92"): b"c"}
    assert found == want


def test_the_whole_name_of_a_lab_is_as_good_as_its_number(folder):
    write(folder / "ada" / LABS[0].folder / LABS[0].editable)
    assert one(folder, "ada").source == b"x = 1\n"


def test_what_a_zip_program_adds_is_no_second_file(folder):
    zipped(folder / "ada.zip", {NAMES[0]: "a", f"__MACOSX/{NAMES[0]}": "junk", f".git/{NAMES[0]}": "junk"})
    assert one(folder, "ada").source == b"a"


def test_two_files_that_could_be_meant_are_not_guessed_between(folder):
    zipped(folder / "ada.zip", {f"old/{NAMES[0]}": "a", f"new/{NAMES[0]}": "b"})
    assert one(folder, "ada").source is None
    assert "which is lab91" in one(folder, "ada").trouble


def test_a_wrong_name_is_named(folder):
    write(folder / "ada" / "lab91" / "train (1).py")
    assert "there is lab91/train (1).py" in one(folder, "ada").trouble


def test_of_several_versions_the_newest_counts_and_it_is_said(folder):
    roster = {"ada": submissions.Student("ada")}
    old, new = zipfile.ZipInfo(NAMES[0], (2026, 1, 1, 0, 0, 0)), zipfile.ZipInfo(NAMES[0], (2026, 2, 1, 0, 0, 0))
    for name, info, text in (("ada.zip", new, "new"), ("ada-2.zip", old, "old")):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(info, text)
    assert one(folder, "ada", roster=roster).source == b"new"
    [note] = collect(folder, LABS, roster).notes
    assert "2 versions" in note
    assert "ada.zip" in note


def test_a_roster_names_who_is_missing_and_who_is_unknown(folder):
    write(folder / "stranger" / NAMES[0])
    collected = collect(folder, LABS, {"ada": submissions.Student("ada")})
    assert {(h.student, h.trouble) for h in collected.handins} == {("ada", "nothing was handed in")}
    assert "stranger" in collected.notes[0]


# ---------------------------------------------------------------------------------------------------- hostile entries


def test_a_zip_bomb_costs_no_more_than_its_limit(folder, monkeypatch):
    bomb = zipped(folder / "ada.zip", {NAMES[0]: b"#" * (64 << 20)}, compression=zipfile.ZIP_DEFLATED)
    assert bomb.stat().st_size < 1 << 20
    assert "larger than" in one(folder, "ada").trouble


def test_a_header_that_lies_about_its_size_is_not_believed(folder):
    path = zipped(folder / "ada.zip", {NAMES[0]: b"#" * (8 << 20)}, compression=zipfile.ZIP_DEFLATED)
    data = path.read_bytes().replace((8 << 20).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    path.write_bytes(data)
    found = one(folder, "ada")
    assert found.source is None or len(found.source) <= submissions.MOST_BYTES


@pytest.mark.parametrize(
    "name", ["../../lab91/train.py", "/lab91/train.py", "C:\\lab91\\train.py", "..\\lab91\\train.py"]
)
def test_a_name_that_leaves_the_archive_is_no_hand_in(folder, name):
    zipped(folder / "ada.zip", {name: "x"})
    assert one(folder, "ada").source is None


def test_a_symbolic_link_is_never_followed(folder, tmp_path):
    secret = write(tmp_path / "secret", "the key")
    (folder / "ada" / "lab91").mkdir(parents=True)
    (folder / "ada" / NAMES[0]).symlink_to(secret)
    (folder / "bob").symlink_to(tmp_path)
    info = zipfile.ZipInfo(NAMES[0])
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(folder / "cy.zip", "w") as archive:
        archive.writestr(info, str(secret))
    collected = collect(folder, LABS)
    assert {h.source for h in collected.handins} == {None}
    assert "symbolic link" in one(folder, "ada").trouble
    assert "symbolic link" in one(folder, "cy").trouble
    assert any("bob" in note for note in collected.notes)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pipes among files on Windows")
def test_a_pipe_is_not_waited_for(folder):
    (folder / "ada" / "lab91").mkdir(parents=True)
    os.mkfifo(folder / "ada" / NAMES[0])
    assert "no ordinary file" in one(folder, "ada").trouble


def test_an_archive_of_too_many_files_is_refused(folder, monkeypatch):
    monkeypatch.setattr(submissions, "MOST_FILES", 10)
    zipped(folder / "ada.zip", {f"{i}.txt": "" for i in range(11)} | {NAMES[0]: "x"})
    assert "more than 10 files" in one(folder, "ada").trouble


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"\0" * 100, b"PK\x05\x06" + b"\xff" * 18])
def test_what_is_no_zip_stops_nobody_else(folder, content):
    (folder / "ada.zip").write_bytes(content)
    write(folder / "bob" / NAMES[0])
    assert "no zip that can be read" in one(folder, "ada").trouble
    assert one(folder, "bob").source == b"x = 1\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name\nada\n", "column named student"),
        ("", "column named student"),
        ("student\nada\nada\n", "line 3: a second ada"),
        ("student,due\nada,tomorrow\n", "time zone"),
        ("student,due\nada,2026-12-14\n", "time zone"),
    ],
)
def test_a_wrong_roster_is_refused_with_its_line(tmp_path, text, said):
    with pytest.raises(BadRoster) as error:
        read_roster(write(tmp_path / "roster.csv", text))
    assert said in str(error.value)


def test_a_roster_from_a_spreadsheet_is_read(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_bytes("\ufeffstudent,name,due\r\nada,Ada 李,2026-12-16T23:59:00+01:00\r\n".encode())
    student = read_roster(path)["ada"]
    assert student.more == {"name": "Ada 李"}
    assert student.due.day == 16
