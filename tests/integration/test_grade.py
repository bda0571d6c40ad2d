"""An instructor's term: assign, collect, grade, be interrupted, go on, regrade, explain, export."""

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from breakfix import catalog, cli, sandbox
from breakfix.zygote import ENVIRONMENT, Engine, EngineFailed

ROOT = Path(__file__).parents[1] / "fixtures" / "learner_root"
LAB = catalog.Catalog.read(ROOT)["lab91"]
RIGHT, BROKEN = LAB.solution.read_text("utf-8"), LAB.starter.read_text("utf-8")
TRUST = "--i-trust-these-submissions"  # what is graded here is ours; tests/hostile has the others


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An instructor's folder and home, and the tiny labs alone."""
    monkeypatch.chdir(tmp_path)
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), catalog.ROOTS_VARIABLE: ""}
    for key, value in (home | ENVIRONMENT | {"COLUMNS": "200", "PYTHONSAFEPATH": "1"}).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(catalog, "own_root", lambda: ROOT)
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def engine():
    """One warm engine for all."""
    with Engine() as engine, pytest.MonkeyPatch.context() as patch:
        patch.setattr("breakfix.cli.instructor.Engine", lambda: _Kept(engine))
        yield engine


class _Kept:
    """An engine that outlives its `with`."""

    def __init__(self, engine):
        self.engine = engine

    def __enter__(self):
        return self.engine

    def __exit__(self, *_):
        pass


@pytest.fixture
def breakfix(monkeypatch, capsys):
    """The command line: (exit code, what it printed)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["breakfix", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, "".join(capsys.readouterr())

    return run


@pytest.fixture
def assignment(breakfix, folder):
    assert breakfix("assign", "lab91", "-o", "bundle", "--title", "Week 3")[0] == 0
    return folder / "bundle" / "assignment.toml"


@pytest.fixture
def graded(breakfix, assignment):
    """Grade the submissions: the JSON."""

    def run(*options):
        code, out = breakfix("grade", "submissions", "--assignment", assignment, TRUST, "--json", *options)
        assert code == 0, out
        return json.loads(out)

    return run


def hand_in(student: str, source: str) -> None:
    path = Path("submissions", student, "lab91", LAB.editable)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, "utf-8")


def states(told: dict) -> dict[str, str]:
    return {row["student"]: row["state"] for row in told["grades"]}


def test_what_students_get_answers_nothing(breakfix, assignment, folder):
    students = folder / "bundle" / "students"
    names = {p.relative_to(students).as_posix() for p in students.rglob("*") if p.is_file()}
    assert names == {"README.md", ".gitignore", "assignment.toml", "lab91/README.md", f"lab91/{LAB.editable}"}
    assert "key" not in (students / "assignment.toml").read_text("utf-8")
    assert (students / "lab91" / LAB.editable).read_text("utf-8") == BROKEN
    code, said = breakfix("assign", "lab91", "-o", "bundle")
    assert code == 2
    assert "not empty" in said


def test_what_students_get_can_be_handed_in_as_it_is(graded, folder):
    shutil.copytree(folder / "bundle" / "students", folder / "submissions" / "ada")
    shutil.copy(folder / "bundle" / "students.zip", folder / "submissions" / "bob.zip")
    assert states(graded()) == {"ada": "failed", "bob": "failed"}


def test_a_class_is_graded_each_by_what_she_handed_in(graded, folder):
    for student, source in {"ada": RIGHT, "bob": BROKEN, "cy": "x = (", "dora": "import os; os._exit(0)"}.items():
        hand_in(student, source)
    Path("roster.csv").write_text("student\nada\nbob\ncy\ndora\nemmy\n")
    told = graded("--roster", "roster.csv")
    assert states(told) == {"ada": "passed", "bob": "failed", "cy": "error", "dora": "error", "emmy": "missing"}
    points = {row["student"]: row["points"] for row in told["grades"]}
    assert points["ada"] == 10
    assert points["cy"] == points["dora"] == points["emmy"] == 0


def test_what_has_a_grade_is_not_graded_again_until_it_changes(graded):
    hand_in("ada", BROKEN)
    hand_in("bob", RIGHT)
    assert graded()["graded"] == 2
    assert graded()["graded"] == 0
    hand_in("ada", RIGHT)
    told = graded()
    assert told["graded"] == 1
    assert states(told) == {"ada": "passed", "bob": "passed"}


def test_a_grade_that_is_given_again_is_the_same_and_the_old_one_is_kept(graded, breakfix):
    hand_in("ada", BROKEN)
    first = graded()["grades"][0]
    for who in ("ada", "lab91", "all"):
        told = graded("--again", who)
        assert told["graded"] == 1
        assert {k: v for k, v in told["grades"][0].items() if k != "graded"} == {
            k: v for k, v in first.items() if k != "graded"
        }
    history = json.loads(breakfix("grade", "--explain", "ada", "lab91", "--json")[1])["history"]
    assert len(history) == 4


def test_the_same_file_is_judged_once_whoever_hands_it_in(graded, engine, monkeypatch):
    judged = []
    original = Engine.judge_job
    monkeypatch.setattr(Engine, "judge_job", lambda self, job: judged.append(job) or original(self, job))
    for student in ("ada", "bob", "cy"):
        hand_in(student, RIGHT)
    assert states(graded()) == dict.fromkeys(("ada", "bob", "cy"), "passed")
    assert len(judged) == 3  # the self-test's two, and one


def test_an_interrupted_run_keeps_what_it_had_and_goes_on(graded, engine, monkeypatch, breakfix, assignment):
    for i in range(6):
        hand_in(f"s{i}", f"{RIGHT}\n# {i}\n")
    original, calls = Engine.judge_job, []

    def dies(self, job):
        calls.append(job)
        if len(calls) == 6:  # two of the self-test, three that are kept, and then the power fails
            raise KeyboardInterrupt
        return original(self, job)

    monkeypatch.setattr(Engine, "judge_job", dies)
    breakfix("grade", "submissions", "--assignment", assignment, TRUST, "-j", 1)
    monkeypatch.setattr(Engine, "judge_job", original)
    told = graded()
    assert 0 < told["graded"] < 6
    assert states(told) == {f"s{i}": "passed" for i in range(6)}


def test_a_file_that_ends_its_judge_ends_nobody_elses_grade(graded, monkeypatch):
    hand_in("ada", RIGHT)
    hand_in("bob", f"{RIGHT}\n# ends its judge\n")
    original = Engine.judge_job

    def sometimes(self, job):
        if b"ends its judge" in job.source:
            raise EngineFailed("the judging process ended before its verdict")
        return original(self, job)

    monkeypatch.setattr(Engine, "judge_job", sometimes)
    told = graded()
    assert states(told) == {"ada": "passed", "bob": "error"}


def test_a_grade_explains_itself(graded, breakfix):
    hand_in("ada", BROKEN)
    graded()
    code, said = breakfix("grade", "--explain", "ada", "lab91")
    assert code == 0
    assert "error, short" in said
    command = said[said.index("breakfix check") :].split("  ")[0].split()
    replayed = breakfix(*command[1:], "--json")
    assert json.loads(replayed[1])["state"] == "failed"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["submissions"], "--assignment"),
        (["submissions", "--assignment", "bundle/students/assignment.toml"], "has no key"),
        (
            ["submissions", "--assignment", "bundle/assignment.toml", "--roster", "bundle/assignment.toml"],
            "column named",
        ),
        (["--explain", "ada", "lab91", "-o", "nowhere"], "gradebook"),
    ],
)
def test_what_is_wrong_with_a_command_is_said(breakfix, assignment, options, said):
    Path("submissions").mkdir()
    code, told = breakfix("grade", *options)
    assert code == 2
    assert said in told


def test_another_assignments_grades_are_not_mixed_in(graded, breakfix):
    hand_in("ada", RIGHT)
    graded()
    breakfix("assign", "lab91", "-o", "other")
    code, said = breakfix("grade", "submissions", "--assignment", "other/assignment.toml", TRUST)
    assert code == 2
    assert "another assignment" in said


def test_strangers_are_refused_where_nothing_isolates(breakfix, assignment, monkeypatch):
    hand_in("ada", RIGHT)
    monkeypatch.setattr(sandbox, "best_level", lambda: sandbox.NONE)
    code, said = breakfix("grade", "submissions", "--assignment", assignment)
    assert code == 3
    assert "no isolation" in said


def test_a_machine_that_fails_the_labs_own_solution_grades_nobody(breakfix, assignment, monkeypatch, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(ROOT, root)
    (root / LAB.solution.relative_to(ROOT)).write_text(BROKEN, "utf-8")
    monkeypatch.setattr(catalog, "own_root", lambda: root)
    hand_in("ada", RIGHT)
    code, said = breakfix("grade", "submissions", "--assignment", assignment, TRUST)
    assert code == 3
    assert "cannot be graded on this machine" in said
    assert not any(Path("results").glob("*.sqlite")) or "passed" not in breakfix("export", "results", "--as", "csv")[1]


@pytest.mark.skipif(sandbox.best_level() == sandbox.NONE, reason="this machine cannot make namespaces")
def test_a_sandbox_changes_no_grade(graded, breakfix, assignment):
    hand_in("ada", RIGHT)
    hand_in("bob", BROKEN)
    trusting = graded()
    code, out = breakfix("grade", "submissions", "--assignment", assignment, "--json", "-o", "isolated")
    assert code == 0
    assert states(json.loads(out)) == states(trusting) == {"ada": "passed", "bob": "failed"}


def test_every_export_has_every_student(graded, breakfix):
    for student, source in {"ada": RIGHT, "bob": BROKEN}.items():
        hand_in(student, source)
    graded()
    for form in ("csv", "json", "junit", "gradescope", "classroom50", "feedback"):
        code, out = breakfix("export", "results", "--as", form, "--json")
        text = "".join(Path(path).read_text("utf-8") + path for path in json.loads(out))
        assert code == 0
        assert "ada" in text
        assert "bob" in text
    Path("canvas.csv").write_text("Student,ID,SIS Login ID,Section,Week 3\nA,1,ada,,\nB,2,bob,,\n")
    [path] = json.loads(breakfix("export", "results", "--as", "canvas", "--canvas", "canvas.csv", "--json")[1])
    rows = list(csv.DictReader(io.StringIO(Path(path).read_text("utf-8"))))
    assert [row["Week 3"] for row in rows] == ["10", "2"]
    assert "10" in breakfix("stats", "results")[1] or "1 passed" in breakfix("stats", "results")[1]
