"""The site builds strictly, every lab's pages have their parts in order, and a notebook that fails fails the build."""

import html
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from breakfix.catalog import Catalog

MISSING = [name for name in ("mkdocs", "material", "mkdocs_jupyter", "matplotlib") if not find_spec(name)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"the site needs breakfix[site]; not there: {', '.join(MISSING)}")

ROOT = Path(__file__).parents[2]
LABS = list(Catalog.read(ROOT)) if (ROOT / "mkdocs.yml").is_file() else []
LAB_PARTS = (
    "The code", "Reproduce", "Predict", "What you may change", "The contract", "What is checked", "Evidence", "Hints",
    "Spoilers",
)  # fmt: skip
SOLUTION_PARTS = (
    "The code", "Cause", "Evidence", "Other right fixes", "Wrong fixes", "In your own code", "In the wild",
    "What the articles say",
)  # fmt: skip


def mkdocs(*arguments, cwd):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *map(str, arguments)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = mkdocs("--site-dir", folder, cwd=ROOT)
    assert built.returncode == 0, built.stderr[-4000:]
    return folder


def page(site, path):
    return (site / path / "index.html").read_text("utf-8")


def words(text):
    """What a reader sees of a page's own text: no tags, and blanks as one."""
    body = re.search(r"<article.*?</article>", text, re.S)[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", body)).split())


def lines_of(path):
    return [" ".join(line.split()) for line in path.read_text("utf-8").splitlines()]


def headings(text):
    return [html.unescape(re.sub(r"<[^>]+>|¶", "", h)).strip() for h in re.findall(r"<h2.*?</h2>", text, re.S)]


def in_order(found, wanted):
    """Whether every one of `wanted` begins some heading of `found`, in this order."""
    rest = iter(found)
    return all(any(heading.startswith(part) for heading in rest) for part in wanted)


def test_every_page_of_the_navigation_is_html(site):
    links = re.findall(r'<a href="([^"#:]*)" class="md-nav__link', page(site, ""))
    pages = {(site / link / "index.html").resolve() for link in links}
    assert len(pages) >= 5 + 2 * len(LABS)
    for path in pages:
        assert path.read_text("utf-8").lstrip().startswith("<!doctype html>"), path


def test_the_table_of_labs_has_them_all(site):
    text = page(site, "labs")
    for lab in LABS:
        assert f'href="{lab.id}/"' in text
        assert html.escape(lab.title, quote=False) in text


def test_pages_that_are_not_of_a_lab(site):
    home = page(site, "")
    assert home.count('<svg class="lab-figure"') == 1 or "is left out" in home
    assert 'href="symptom/"' in home
    assert page(site, "claims").count('<a id="') >= 379
    assert page(site, "labs").count('<svg class="track-map"') == 1
    assert page(site, "calculators").count('<form class="calculator"') == 3
    for script in ("sheets.js", "progress.js", "calculators.js", "calculators-data.js"):
        assert (site / "assets" / script).is_file()


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.id)
def test_lab_page_has_its_parts_in_order(site, lab):
    text = page(site, f"labs/{lab.id}")
    assert text.index("The alert") < text.index('class="facts"') < text.index("<h2")
    assert lab.alert.split()[0] in words(text)
    assert in_order(headings(text), [p for p in LAB_PARTS if p != "Predict" or lab.predictions])
    assert [line for line in lines_of(lab.starter) if line not in words(text)] == []
    assert text.count('<details class="tip"') == len(lab.hints)
    assert "<details open" not in text
    assert f"breakfix start {lab.id}" in words(text)
    assert ("has not run on a GPU yet" in text) is not any((ROOT / "records").glob(f"{lab.id}.cuda*.json"))


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.id)
def test_lab_page_does_not_show_the_fix(site, lab):
    known = " ".join(lines_of(lab.starter) + lines_of(lab.path / "README.md"))  # the contract may be in its own words
    added = [line for line in lines_of(lab.solution) if len(line) > 30 and line not in known]
    shown = words(page(site, f"labs/{lab.id}"))
    assert [line for line in added if line in shown] == []


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.id)
def test_solution_page_has_its_parts_in_order(site, lab):
    text = page(site, f"labs/{lab.id}/solution")
    assert text.index("This page gives everything away") < text.index("<h2")
    assert in_order(headings(text), SOLUTION_PARTS)
    assert re.findall(r"<label for=[^>]*>(\w+)</label>", text)[:3] == ["broken", "fixed", "diff"]
    assert "{evidence}" not in text
    assert [line for path in (lab.starter, lab.solution) for line in lines_of(path) if line not in words(text)] == []


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.id)
def test_evidence_is_of_a_real_run(site, lab):
    run = json.loads((site / "labs" / lab.id / "run.json").read_text("utf-8"))
    for path in (f"labs/{lab.id}", f"labs/{lab.id}/solution"):
        text = page(site, path)
        if run["broken"]["state"].startswith("needs"):
            assert "Not measured when this site was built" in text
            continue
        assert run["fixed"]["state"] == "passed"
        assert run["broken"]["state"] != "passed"
        for condition in (run["date"], f"torch {run['fixed']['versions']['torch']}", f"seed {run['fixed']['seed']}"):
            assert condition in words(text)
        assert text.count('<svg class="lab-figure" role="img"') == 1
        assert str(ROOT) not in text


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.id)
def test_walkthrough_ran(site, lab):
    if not (ROOT / "docs" / "walkthroughs" / f"{lab.id}.py").is_file():
        pytest.fail(f"{lab.id} has no walkthrough; write docs/walkthroughs/{lab.id}.py")
    assert f"walkthroughs/{lab.id}/" in page(site, f"labs/{lab.id}")
    text = page(site, f"walkthroughs/{lab.id}")
    assert "jp-OutputArea-output" in text
    assert "Traceback (most recent call last)" not in text
    assert 1 <= text.count("jp-CodeCell") <= 12  # twice per cell
    assert len(text) < 400_000, "the style sheets of the notebook belong into a file of their own"
    assert 'src="https://' not in text


@pytest.mark.parametrize(("cell", "builds"), [("print(6 * 7)", True), ("print(6 / 0)", False)])
def test_a_failing_cell_fails_the_build(tmp_path, cell, builds):
    (tmp_path / "docs" / "walkthroughs").mkdir(parents=True)
    (tmp_path / "docs" / "index.md").write_text("# A site\n")
    (tmp_path / "docs" / "walkthroughs" / "one.py").write_text(f"# %% [markdown]\n# # One\n\n# %%\n{cell}\n")
    settings = {"INHERIT": ROOT / "mkdocs.yml", "hooks": f"[{ROOT}/hooks/notebooks.py]", "watch": "[]",
                "nav": "[index.md, walkthroughs/one.ipynb]"}  # fmt: skip
    (tmp_path / "mkdocs.yml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    built = mkdocs("--site-dir", tmp_path / "site", cwd=tmp_path)
    assert (built.returncode == 0) is builds, built.stderr[-3000:]
    if builds:
        assert "42" in page(tmp_path / "site", "walkthroughs/one")
    else:
        assert "ZeroDivisionError" in built.stderr
