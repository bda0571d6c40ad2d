"""What a reader does with the site: filter, sort, mark, calculate; on a desktop and on a phone, in both palettes."""

import json
from pathlib import Path

import pytest

from breakfix.catalog import Catalog

ROOT = Path(__file__).parents[2]
SIZES = pytest.mark.parametrize("size", ["desktop", "phone"])
PAGES = ("", "labs/", "claims/", "calculators/", "symptom/")
SHOWN = "[...document.querySelectorAll('.sheet tbody tr')].filter((r) => r.offsetParent !== null)"
VECTORS = json.loads((ROOT / "tests" / "fixtures" / "calculators.json").read_text("utf-8"))
CLAIMS = [json.loads(line) for line in (ROOT / "claims" / "ledger.jsonl").read_text("utf-8").splitlines()]


def cells(page, column):
    return page.run(f"{SHOWN}.map((r) => r.cells[{column}].textContent.trim())")


def control(page, name):
    """The selector of the filter that is called so."""
    return page.run(
        f"(() => {{ const l = [...document.querySelectorAll('.sheet-controls label')]"
        f".find((l) => l.firstChild.textContent.trim() === {json.dumps(name)}); l.id = 'l-{name}';"
        f"return '#l-{name} :is(select, input)'; }})()"
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@SIZES
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.strip("/") or "home")
def test_no_page_is_wider_than_the_screen(tab, path, size, dark):
    page = tab(size, dark)
    page.open(path)
    assert page.run("document.title.length") > 0
    assert page.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert page.run("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")


TRACEBACK = """Traceback (most recent call last):
  File "/home/ann/run.py", line 7, in train
    loss.backward()
RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.
"""


@SIZES
@pytest.mark.parametrize(
    ("said", "begins", "lab"),
    [
        (TRACEBACK, "Begin", "lab08"),
        ("验证集准确率随 batch size 变化", "Begin", "lab15"),
        ("matplotlib shows no window", "No lab covers this", ""),
    ],
)
def test_a_symptom_finds_its_lab(tab, size, said, begins, lab):
    page = tab(size)
    page.open("symptom/")
    page.choose("#symptom", said)
    assert page.run("document.querySelector('#symptom-answer p').textContent").startswith(begins)
    first = page.run("document.querySelector('#symptom-answer li a').href")
    assert lab in first
    assert page.complaints == []


@SIZES
def test_the_catalogue_is_filtered(tab, size):
    page, labs = tab(size), list(Catalog.read(ROOT))
    page.open("labs/")
    every = cells(page, 0)
    assert set(every) <= {lab.id for lab in labs}
    page.choose(control(page, "track"), "memory")
    assert cells(page, 0) == [lab.id for lab in labs if lab.track == "memory" and lab.id in every]
    page.choose(control(page, "track"), "")
    page.choose(control(page, "minutes"), "30")
    assert cells(page, 0) == [lab.id for lab in labs if lab.minutes <= 30 and lab.id in every]
    page.choose(control(page, "minutes"), "")
    page.choose(control(page, "needs"), "Linux")
    assert cells(page, 0) == [lab.id for lab in labs if "fork" in lab.needs and lab.id in every]
    page.choose(control(page, "needs"), "")
    page.choose(control(page, "words"), "loss NAN")
    assert cells(page, 0) == ["lab08"]
    assert page.run("document.querySelector('.sheet-controls output').textContent") == f"1 of {len(every)} labs"


@SIZES
def test_the_catalogue_is_sorted(tab, size):
    page = tab(size)
    page.open("labs/")
    page.run("document.querySelectorAll('.catalogue th button')[4].click()")
    minutes = list(map(int, cells(page, 4)))
    assert minutes == sorted(minutes)
    page.run("document.querySelectorAll('.catalogue th button')[4].click()")
    assert list(map(int, cells(page, 4))) == minutes[::-1] or cells(page, 4) == sorted(cells(page, 4), key=int)[::-1]
    assert page.run("document.querySelectorAll('.catalogue th')[4].getAttribute('aria-sort')") == "descending"


@SIZES
def test_what_is_done_stays_done_until_it_is_cleared(tab, size):
    page = tab(size)
    page.open("labs/")
    box = "document.querySelector('[aria-label=\"lab08 is done\"]')"
    assert page.run(f"{box}.checked") is False
    page.run(f"{box}.click()")
    page.open("labs/")
    assert page.run(f"{box}.checked") is True
    assert page.run("document.querySelector('.track-map [data-lab=lab08] .mark').textContent") == "✓ done"
    assert page.run("localStorage.getItem('breakfix:done')") == '["lab08"]'
    page.run("URL.createObjectURL = (blob) => { window.saved = blob; return '#'; }")
    page.run("[...document.querySelectorAll('.sheet-controls button')].find((b) => b.textContent == 'Export').click()")
    assert json.loads(page.run("window.saved.text()")) == {"done": ["lab08"]}
    page.run("window.confirm = () => true")
    page.run("[...document.querySelectorAll('.sheet-controls button')].find((b) => b.textContent == 'Clear').click()")
    assert page.run(f"{box}.checked") is False
    assert page.run("localStorage.getItem('breakfix:done')") == "[]"


def test_marks_that_somebody_else_wrote_do_no_harm(tab):
    page = tab()
    page.open("labs/")
    page.run("localStorage.setItem('breakfix:done', '{\"a\": [1]')")
    page.open("labs/")
    assert page.run("document.querySelectorAll('.catalogue input:checked').length") == 0


def test_every_lab_of_the_table_is_on_the_map_or_is_the_first(tab):
    page = tab()
    page.open("labs/")
    on_the_map = page.run("[...document.querySelectorAll('.track-map a')].map((a) => a.dataset.lab)")
    assert sorted(["lab00", *on_the_map]) == sorted(cells(page, 0))
    boxes = page.run(
        "[...document.querySelectorAll('.track-map a')].map((a) => [a.querySelector('rect').getBBox().width,"
        " Math.max(...[...a.querySelectorAll('tspan')].map((t) => t.getComputedTextLength()))])"
    )
    assert all(text <= box - 18 for box, text in boxes), "a title sticks out of its box"


@SIZES
def test_the_ledger_is_filtered(tab, size):
    page = tab(size)
    page.open("claims/")
    assert len(cells(page, 0)) == len(CLAIMS)
    page.choose(control(page, "article"), "A")
    page.choose(control(page, "verdict"), "✗ refuted")
    assert cells(page, 0) == [c["id"] for c in CLAIMS if c["id"][0] == "A" and c["verdict"] == "refuted"]
    page.choose(control(page, "article"), "")
    page.choose(control(page, "verdict"), "")
    page.choose(control(page, "section"), "B-6.3")
    assert cells(page, 0) == [c["id"] for c in CLAIMS if c["id"].startswith("B-6.3-")]
    assert "of 379 claims" in page.run("document.querySelector('.sheet-controls output').textContent")


def test_a_link_to_a_claim_finds_it_though_it_is_filtered_away(tab):
    page = tab()
    page.open("claims/")
    page.choose(control(page, "article"), "A")
    page.run("location.hash = '#B-7-11'")
    page.wait("document.getElementById('B-7-11').offsetParent !== null")


def test_the_browser_meets_the_vectors_too(tab):
    page = tab()
    page.open("calculators/")
    found = page.run(f"{json.dumps(VECTORS)}.map((v) => window.breakfixFormulas[v.formula](v.input))")
    for vector, answer in zip(VECTORS, found, strict=True):
        assert answer == pytest.approx(vector["output"], rel=1e-12)


@SIZES
@pytest.mark.parametrize(
    ("formula", "field", "value", "more"),
    [("memory", "batch", "256", True), ("pinned", "workers", "16", True), ("ddp", "link", "0", True)],
)
def test_a_calculator_answers_to_what_is_asked(tab, size, formula, field, value, more):
    page = tab(size)
    page.open("calculators/")
    form = f"document.querySelector('[data-formula={formula}]')"
    before = page.run(f"{form}.querySelector('.answer').textContent")
    assert before.startswith("Modelled: ")
    page.choose(f"[data-formula={formula}] [name={field}]", value)
    after = page.run(f"{form}.querySelector('.answer').textContent")
    assert after.startswith("Modelled: ")
    assert after != before
    assert "NaN" not in before + after
    page.choose(f"[data-formula={formula}] input", "")
    assert "missing or out of range" in page.run(f"{form}.querySelector('.answer').textContent")


def test_a_model_brings_its_figures_and_ones_own_are_ones_own(tab):
    page = tab()
    page.open("calculators/")
    parameters = "document.querySelector('[data-formula=memory] [name=parameters]').value"
    page.choose("[data-formula=memory] [name=model]", "0")
    assert page.run(parameters) == "11.69"
    page.choose("[data-formula=memory] [name=parameters]", "700")
    assert page.run("document.querySelector('[data-formula=memory] [name=model]').value") == "own"
    page.choose("[data-formula=memory] [name=batch]", "64")
    assert page.run(parameters) == "700"


@pytest.mark.parametrize("path", ["labs/", "claims/", "calculators/"])
def test_without_javascript_it_is_a_page(tab, path):
    page = tab()
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.open(path)
    wanted = "noscript p, noscript" if path == "calculators/" else ".sheet tbody tr"
    shown = f"[...document.querySelectorAll('{wanted}')].filter((e) => e.offsetParent !== null).length"
    assert page.run(shown) >= {"labs/": 25, "claims/": 379, "calculators/": 1}[path]
    assert page.run("document.querySelectorAll('.sheet-controls').length") == 0


@pytest.mark.parametrize("path", ["labs/", "claims/", ""])
def test_links_lead_somewhere(tab, path):
    page = tab()
    page.open(path)
    every = (
        "[...document.querySelectorAll('article a[href]')].map((a) => new URL(a.getAttribute('href'), location.href))"
    )
    links = page.run(f"[...new Set({every}.map((url) => url.href.split('#')[0]))]")
    inside = [link for link in links if link.startswith(page.address)]
    found = page.run(f"Promise.all({json.dumps(inside)}.map((u) => fetch(u).then((r) => r.status)))")
    assert len(inside) > 3
    assert set(found) == {200}
