"""The home page's picture comes from a run, and is put where index.md asks for it and nowhere else."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from breakfix.catalog import Catalog
from breakfix.verdict import Verdict

ROOT = Path(__file__).parents[2]
if not all(map(find_spec, ("mkdocs", "matplotlib"))):
    pytest.skip("the site needs breakfix[site]", allow_module_level=True)
if not (ROOT / "hooks").is_dir():
    pytest.skip("the site's hooks are in a checkout only", allow_module_level=True)

sys.path.insert(0, str(ROOT / "hooks"))
import home  # noqa: E402
from lab_runs import Run  # noqa: E402

sys.path.pop(0)

INDEX = (ROOT / "docs" / "index.md").read_text("utf-8")
CONFIG = {"config_file_path": str(ROOT / "mkdocs.yml")}


def filled(markdown: str, where: str) -> str:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=where))
    return home.on_page_markdown(markdown, page, SimpleNamespace(**CONFIG), None)


def test_index_asks_for_one_figure_and_gets_it(monkeypatch):
    monkeypatch.setattr(home, "drawn", lambda lab, folder: f"the figure of {lab.id}")
    assert len(home.MARKER.findall(INDEX)) == 1
    assert "the figure of lab05" in filled(INDEX, "index.md")
    assert "<!-- figure" not in filled(INDEX, "index.md")


def test_other_pages_are_left_alone():
    assert filled("<!-- figure: lab05 -->", "teaching.md") == "<!-- figure: lab05 -->"


def run(state: str) -> Run:
    lab = Catalog.read(ROOT)["lab05"]
    sides = {side: {key: [1.0, 2.0] for key in lab.figure["series"]} for side in ("broken", "fixed")}
    verdicts = (Verdict("lab05", state, seed=20), Verdict("lab05", "passed", seed=20))
    return Run("lab05", "0", "2026-01-01", "cpu", "CPU", *verdicts, sides, "")


def test_a_kept_run_is_drawn_with_where_it_is_from(monkeypatch):
    monkeypatch.setattr(home.lab_runs, "kept", lambda lab, folder: run("failed"))
    text = home.drawn(Catalog.read(ROOT)["lab05"], Path("nowhere"))
    assert text.count("<svg") == 1
    assert "2026-01-01 · CPU" in text


def test_where_the_lab_cannot_run_the_page_says_so(monkeypatch):
    monkeypatch.setattr(home.lab_runs, "kept", lambda lab, folder: run("needs ranks"))
    assert "left out" in home.drawn(Catalog.read(ROOT)["lab05"], Path("nowhere"))
