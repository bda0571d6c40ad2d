"""Data sets: every file is the one that its card describes, and a subject in a sandbox can read it."""

from functools import partial

import pytest
from PIL import Image

from breakfix import child, data, sandbox
from breakfix.catalog import Catalog

MOST = 400_000  # bytes of all data sets together: a wheel carries them
TOLD = {"name", "shows", "author", "source", "taken_from", "licence", "licence_says", "sha256", "original_sha256"}
AROUND = {"card.toml", "build.py"}
LICENCES = {"CC0-1.0", "CC-BY-2.0", "public domain"}


@pytest.fixture(params=data.names())
def name(request) -> str:
    return request.param


def test_there_is_a_data_set():
    assert "photographs" in data.names()


def test_every_file_is_the_one_that_its_card_describes(name):
    entries = {entry["name"]: entry for entry in data.card(name)["file"]}
    assert {file: data.checksum(path) for file, path in data.files(name).items()} == {
        file: entry["sha256"] for file, entry in entries.items()
    }
    assert {path.name for path in data.folder(name).iterdir() if path.is_file()} == entries.keys() | AROUND


def test_every_card_says_whose_it_is_and_under_which_licence(name):
    card = data.card(name)
    assert {"title", "says", "built"} <= card.keys()
    for entry in card["file"]:
        assert entry.keys() == TOLD
        assert all(value.strip() for value in entry.values())
        assert entry["licence"] in LICENCES


def test_all_data_sets_together_are_small():
    assert sum(path.stat().st_size for path in data.ROOT.rglob("*") if path.is_file()) <= MOST


def test_photographs_can_be_read():
    for path in data.files("photographs").values():
        with Image.open(path) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert 200 <= max(image.size) <= 320


def test_an_unknown_data_set_is_refused_with_the_names_that_there_are():
    with pytest.raises(LookupError, match="photographs"):
        data.folder("paintings")


@pytest.mark.skipif(sandbox.best_level() != sandbox.NAMESPACES, reason="this machine cannot make namespaces")
def test_a_subject_in_a_sandbox_can_read_them_and_no_more():
    path = data.files("photographs")["cat.jpg"]
    lab = Catalog.read()["lab00"]

    def look() -> bytes:
        try:
            path.with_name("new.jpg").touch()
        except OSError:
            return data.checksum(path).encode() + bytes([lab.solution.exists()])
        return b"could write"

    enter = partial(sandbox.enter, sandbox.visible(lab), keep_network=False, memory_mib=2048)
    ended = child.run_child(look, child.Bounds(cpu_seconds=20), enter)
    assert ended.data == data.checksum(path).encode() + b"\0", ended.log
