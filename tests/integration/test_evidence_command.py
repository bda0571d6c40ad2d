"""`breakfix evidence`: a record of every lab on a device, beside the CPU's; nothing is lost when it is stopped."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from breakfix.catalog import ROOTS_VARIABLE, Catalog
from breakfix.cli import commands
from breakfix.records import Run, differences, record
from breakfix.verdict import FAILED, Figure
from breakfix.zygote import Engine

TINY = Path(__file__).parents[1] / "fixtures" / "tiny_root"


@pytest.fixture(scope="module")
def run():
    with Engine() as engine:
        return record(Catalog.read(TINY)["lab90"], engine)


@pytest.fixture
def evidence(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ROOTS_VARIABLE, str(TINY))

    def call(*arguments):
        done = CliRunner().invoke(commands(), ["evidence", *arguments])
        return done.exit_code, done.output

    return call


def test_a_record_holds_both_verdicts_and_is_not_made_twice(evidence, tmp_path):
    assert evidence("lab90", "--device", "cpu", "-o", "out")[0] == 0
    path = tmp_path / "out" / "lab90.cpu.json"
    run = Run.from_json(path.read_text())
    assert (run.broken.state, run.fixed.state, run.device_name) == ("failed", "passed", "CPU")
    path.write_text(path.read_text().replace('"date": "', '"date": "1'))
    evidence("lab90", "--device", "cpu", "-o", "out")
    assert Run.from_json(path.read_text()).date == f"1{run.date}"


def test_when_the_time_is_over_it_says_what_was_not_begun(evidence):
    code, told = evidence("lab90", "--device", "cpu", "--minutes", "0", "--json")
    assert (code, json.loads(told)) == (3, {"records": [], "not begun": ["lab90"]})


def test_without_a_card_there_is_no_record(evidence, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a card")
    code, told = evidence("lab90", "-o", "out")
    assert (code, list((tmp_path / "out").iterdir())) == (3, [])
    assert "needs cuda" in told


def test_differences_are_of_outcomes_and_of_figures_but_not_of_rounding(run):
    [check, *rest] = run.fixed.checks
    given = replace(check, figures=(Figure("error", 1.0, "<=", 2.0, holds=True), Figure("kind", "a", "==", "a")))
    cpu = replace(run, fixed=replace(run.fixed, checks=(given, *rest)))
    assert list(differences(cpu, cpu)) == []
    for value, count in ((1.05, 0), (1.5, 1), (float("nan"), 1)):
        seen = replace(given, figures=(replace(given.figures[0], value=value), given.figures[1]))
        other = replace(cpu, fixed=replace(cpu.fixed, checks=(seen, *rest)))
        assert len(differences(cpu, other)) == count, value
    worse = replace(cpu, fixed=replace(cpu.fixed, state=FAILED, checks=(replace(given, state=FAILED), *rest)))
    assert [(d.what, d.cpu, d.other) for d in differences(cpu, worse)] == [
        ("state", "passed", "failed"), (check.name, "passed", "failed"),
    ]  # fmt: skip
    assert Run.from_json(replace(worse, differences=tuple(differences(cpu, worse))).to_json()).differences
