"""What the pages of the labs are made of: a README taken apart, a run kept as JSON, what the starter prints."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from breakfix.verdict import CheckResult, Figure, Verdict

if not find_spec("mkdocs"):
    pytest.skip("the site needs breakfix[site]", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[2] / "hooks"))
import lab_pages
from lab_runs import Run

sys.path.pop(0)


def run(**changes):
    checks = (CheckResult("test_a", "failed", 10, figures=(Figure("loss", float("nan"), "<=", 1.0),)),)
    broken = Verdict("lab99", "failed", seed=20, checks=checks)
    fields = {
        "lab": "lab99", "code": "0", "date": "2026-01-01", "device": "cpu", "device_name": "CPU", "broken": broken,
        "fixed": Verdict("lab99", "passed", seed=20), "prints": "",
        "evidence": {"broken": {"bad": 8, "curve": [1.0, "nan"]}, "fixed": {}},
    }  # fmt: skip
    return Run(**(fields | changes))


def test_a_readme_falls_into_parts_and_fences_stay_whole():
    text = "# Title\n\nintro\n\n## One\n\n```python\n## no heading\n```\n\n## Two\ntwo"
    preamble, sections = lab_pages.split(text)
    assert preamble == "# Title\n\nintro"
    assert list(sections) == ["One", "Two"]
    assert "## no heading" in sections["One"]


def test_a_longer_fence_may_hold_a_shorter_one():
    _, sections = lab_pages.split("## One\n````\n```\n## no\n```\n````\n## Two\n")
    assert list(sections) == ["One", "Two"]


def test_a_run_survives_json():
    back = Run.from_json(run().to_json())
    assert back.evidence == run().evidence
    assert back.broken.state == "failed"
    assert back.broken.checks[0].figures[0].value != back.broken.checks[0].figures[0].value, "nan is nan again"


def test_the_answer_is_the_choice_that_the_run_bears_out():
    prediction = {"question": "?", "choices": ["0", "about 8", "40"], "evidence": "bad"}
    assert lab_pages.answer(run(), prediction) == "about 8 (measured: 8)"
    assert lab_pages.answer(run(), prediction | {"choices": ["8", "9"]}) == "8"
    assert lab_pages.answer(run(), prediction | {"evidence": "other"}) == ""


def test_claims_are_links_into_the_ledger():
    text = lab_pages.linked('"It doubles memory" (B-5.1-08, A-5.G-01): partly. PCI-4.0-16 is none.')
    assert "([B-5.1-08](../../claims.md#B-5.1-08), [A-5.G-01](../../claims.md#A-5.G-01)): partly" in text
    assert text.endswith("PCI-4.0-16 is none.")


def test_long_output_keeps_its_beginning_and_its_end():
    text = lab_pages.printed(run(prints="\n".join(f"line {i}" for i in range(100))))
    assert text.startswith("line 0\n")
    assert text.endswith("line 99")
    assert "86 more lines" in text
    assert lab_pages.printed(run(prints="short")) == "short"


def test_what_could_not_run_says_so():
    assert run().ran
    assert not run(broken=Verdict("lab99", "needs cuda", seed=20)).ran


RECORDS = sorted((Path(__file__).parents[2] / "records").glob("*.json"))


@pytest.mark.skipif(not RECORDS, reason="no run on a GPU has been recorded")
def test_recorded_runs_are_whole_and_of_a_gpu():
    for path in RECORDS:
        found = Run.from_json(path.read_text("utf-8"))
        assert path.name == f"{found.lab}.cuda.json"
        assert found.device.startswith("cuda")
        assert found.fixed.passed
        assert not found.broken.passed
