"""A team's labs in a folder of their own, outside the repository: every command takes them like the project's."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from breakfix.catalog import ROOTS_VARIABLE, Catalog, Lab, own_root
from breakfix.cli import commands
from breakfix.scaffold import new_lab

app = commands()


@pytest.fixture(scope="module")
def team(tmp_path_factory) -> Lab:
    """The team's only lab."""
    return new_lab("scores_depend_on_the_batch", tmp_path_factory.mktemp("team"), number=90)


@pytest.fixture
def breakfix(team, tmp_path, monkeypatch):
    """Run the command line in a learner's folder that knows of the team's root: (exit code, its JSON)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ROOTS_VARIABLE, str(team.root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments):
        result = CliRunner().invoke(app, [*arguments, "--json"])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, json.loads(result.stdout)

    return run


def test_the_projects_labs_and_the_teams_are_one_catalog(team, breakfix, monkeypatch):
    """Listed by number, the project's own all there; a root that is named twice counts once."""
    own = [lab.id for lab in Catalog.read(own_root())]
    assert [row["lab"] for row in breakfix("list")[1]] == sorted([*own, team.id])
    monkeypatch.setenv(ROOTS_VARIABLE, os.pathsep.join(map(str, [own_root(), team.root, team.root])))
    assert not [name for name, error in Catalog.read().bad.items() if "exists already" in str(error)]


def test_a_learner_works_on_a_teams_lab(team, breakfix, tmp_path):
    """From start to a pass: the same commands, the same folder, the same memory of what was done."""
    mine = tmp_path / "lab90" / "train.py"
    assert breakfix("start", "lab90")[1] == {"lab": "lab90", "file": str(mine), "existed": False}
    assert mine.read_text("utf-8") == team.starter.read_text("utf-8")
    assert team.alert in (mine.parent / "README.md").read_text("utf-8")
    assert breakfix("hint", "90")[1]["hints"] == [team.hints[0]]
    code, verdict = breakfix("check", "lab90")
    assert (code, verdict["state"]) == (1, "failed")
    assert {c["name"] for c in verdict["checks"] if c["state"] == "failed"} == team.starter_fails
    shutil.copy(team.solution, mine)
    code, verdict = breakfix("check", "lab90")
    assert (code, verdict["state"], verdict["points"]) == (0, "passed", [10, 10])
    assert [row["status"] for row in breakfix("list")[1] if row["lab"] == "lab90"] == ["passed"]
    assert "## Cause" in breakfix("explain", "lab90")[1]["explanation"]
    assert breakfix("diff", "lab90")[1]["diff"] == []
    assert breakfix("reset", "lab90")[1]["file"] == str(mine)
    assert mine.read_text("utf-8") == team.starter.read_text("utf-8")


def test_run_measures_a_teams_lab(breakfix):
    """In the foreground, as it would the project's."""
    breakfix("start", "lab90")
    code, measured = breakfix("run", "lab90", "--seed", "1")
    assert (code, measured["evidence"]["alone.highest"]) == (0, 1.0)


def test_a_symptom_finds_a_teams_lab(breakfix):
    """What people paste leads to the team's labs, too."""
    code, found = breakfix("symptom", "probability is 1 for every class")
    assert (code, found["labs"][0]["lab"]) == (0, "lab90")


def test_pytest_by_hand_on_a_teams_lab(team, tmp_path):
    """The checks are ordinary pytest tests, wherever they lie."""
    command = ["pytest", "-p", "breakfix.checks", "-q", "--import-mode=importlib", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", *command, str(team.tests_path), "--subject", str(team.starter), "--seed", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != ROOTS_VARIABLE},
    )
    assert done.returncode == 1, done.stderr
    assert "2 failed, 1 passed" in done.stdout


def test_a_root_that_is_not_there_is_told(tmp_path):
    """With the variable's folder named, so that a typing error in a profile is found."""
    done = subprocess.run(
        [sys.executable, "-m", "breakfix", "list"],
        capture_output=True,
        text=True,
        env=os.environ | {ROOTS_VARIABLE: str(tmp_path / "nowhere"), "COLUMNS": "1000"},
    )
    assert done.returncode == 3
    assert f"{tmp_path / 'nowhere'}: has no labs/ folder; a root holds labs/, solutions/ and tests/labs/" in done.stderr
