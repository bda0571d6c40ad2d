"""Graders for other places, as far as they run here: laid out as on Gradescope, with Slurm's variables, by bash."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from breakfix import sandbox
from breakfix.catalog import ROOTS_VARIABLE, Catalog
from breakfix.cli import commands
from breakfix.grading.deploy import Place, fill, requirement

yaml = pytest.importorskip("yaml", reason="workflows are parsed with PyYAML, of breakfix[site]")
pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="the scripts are bash")

ROOT = Path(__file__).parents[1] / "fixtures" / "learner_root"
LAB = Catalog.read(ROOT)["lab91"]
RIGHT, BROKEN = LAB.solution.read_text("utf-8"), LAB.starter.read_text("utf-8")
BREAKFIX = Path(sys.executable).with_name("breakfix")
TRUST = [] if sandbox.best_level() != sandbox.NONE else ["--i-trust-these-submissions"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An instructor's folder, whose own labs are the tiny ones, and an assignment of one of them."""
    monkeypatch.chdir(tmp_path)
    for key, value in {"HOME": tmp_path, "XDG_CACHE_HOME": tmp_path / "cache", ROOTS_VARIABLE: ROOT}.items():
        monkeypatch.setenv(key, str(value))
    breakfix("assign", "lab91", "-o", "bundle", "--due", "2020-01-01T00:00:00+00:00")
    return tmp_path


def breakfix(*arguments) -> list[str]:
    """The command line: its JSON."""
    done = CliRunner().invoke(commands(), [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def autograder(place: str, *options) -> list[Path]:
    command = ("autograder", "--as", place, "--assignment", "bundle/assignment.toml", "-o", "grader", *TRUST)
    return [Path(name) for name in breakfix(*command, *options)]


def bash(*command, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", *map(str, command)], capture_output=True, text=True, timeout=300, env=os.environ | environment
    )


def is_bash(script: str) -> bool:
    done = subprocess.run(
        ["bash", "-n"], input=re.sub(r"\$\{\{.*?\}\}", "word", script), text=True, capture_output=True
    )
    return done.returncode == 0


# ---------------------------------------------------------------------------------------------------------- Gradescope


@pytest.fixture
def laid_out(folder):
    """The folders as Gradescope has them, the zip unpacked into source/."""
    [path] = autograder("gradescope")
    root = folder / "autograder"
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            target = root / "source" / info.filename
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(info))
            target.chmod(stat.S_IMODE(info.external_attr >> 16))
    (root / "submission").mkdir()
    shutil.copy(root / "source" / "run_autograder", root)
    return root


def graded(root: Path, **environment) -> tuple[int, dict]:
    environment = {"AUTOGRADER_ROOT": str(root), "BREAKFIX": str(BREAKFIX), ROOTS_VARIABLE: ""} | environment
    done = subprocess.run(
        [root / "run_autograder"], capture_output=True, text=True, timeout=300, env=os.environ | environment
    )
    return done.returncode, json.loads((root / "results" / "results.json").read_text())


@pytest.mark.parametrize(("source", "points"), [(RIGHT, 10), (BROKEN, 2)])
def test_gradescope_grades_a_submission_with_the_instructors_own_lab(laid_out, source, points):
    (laid_out / "submission" / LAB.editable).write_text(source)
    code, told = graded(laid_out)
    assert code == 0
    assert told["score"] == points  # long past its due date: Gradescope has its own policy
    assert [test["max_score"] for test in told["tests"]] == [4, 4, 2]


def test_a_submission_that_lacks_the_file_is_told_so(laid_out):
    (laid_out / "submission" / "summs.py").write_text(RIGHT)
    code, told = graded(laid_out)
    assert (code, told["score"]) == (0, 0)
    assert "has no lab91/sums.py" in told["tests"][0]["output"]


def test_where_nothing_can_be_graded_a_student_is_told_that_it_is_not_her_file(laid_out):
    (laid_out / "submission" / LAB.editable).write_text(RIGHT)
    code, told = graded(laid_out, BREAKFIX="/bin/false")
    assert code == 1
    assert told["score"] == 0
    assert "not your file" in told["output"]


def test_the_zip_holds_what_it_takes_and_no_more(laid_out):
    names = {p.relative_to(laid_out / "source").as_posix() for p in (laid_out / "source").rglob("*") if p.is_file()}
    assert {"setup.sh", "run_autograder", "assignment.toml"} <= names
    assert f"root/labs/{LAB.folder}/measure.py" in names
    assert not [name for name in names if "lab92" in name or "__pycache__" in name]
    assert "due" not in (laid_out / "source" / "assignment.toml").read_text()
    assert os.access(laid_out / "source" / "setup.sh", os.X_OK)


def test_setup_installs_this_version_with_the_extras_and_moves_the_solutions_away(laid_out, folder):
    """With a Python that only notes what it is asked for, and a package that is laid out as a wheel's."""
    programs, site = folder / "programs", folder / "site"
    programs.mkdir()
    for name in ("labs", "solutions", "tests/labs"):
        (site / "breakfix" / "content" / name).mkdir(parents=True)
    stub = '#!/bin/sh\necho "$0 $@" >> "$NOTES"\ncase "$2" in *breakfix*) echo "$PACKAGE";; esac\n'
    stub += '[ "$2" = venv ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/breakfix"\nexit 0\n'
    (programs / "python3.13").write_text(stub)
    (programs / "python3.13").chmod(0o755)
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "NOTES": str(folder / "notes"),
        "PACKAGE": str(site / "breakfix"),
    }
    done = bash(laid_out / "source" / "setup.sh", AUTOGRADER_ROOT=str(laid_out), **environment)
    assert done.returncode == 0, done.stderr
    wanted = r"venv/bin/python -m pip install .*--find-links \S+/source/wheels breakfix\[plots\]=="
    assert re.search(wanted, (folder / "notes").read_text())
    assert {path.name for path in (laid_out / "breakfix").iterdir()} == {"src", "labs", "solutions", "tests"}
    assert (site / "breakfix.pth").read_text() == f"{laid_out}/breakfix/src\n"
    assert not (site / "breakfix").exists()
    assert not (laid_out / "breakfix" / "src" / "breakfix" / "content").exists()


def test_a_wheel_goes_into_the_zip(folder):
    Path("breakfix-1.whl").write_bytes(b"PK")
    [path] = autograder("gradescope", "--wheel", "breakfix-1.whl")
    assert zipfile.ZipFile(path).read("wheels/breakfix-1.whl") == b"PK"


# --------------------------------------------------------------------------------------------------- Slurm, Kubernetes


def hand_in(**sources) -> None:
    for student, source in sources.items():
        path = Path("the class", student, "lab91", LAB.editable)
        path.parent.mkdir(parents=True)
        path.write_text(source)


def test_a_slurm_array_grades_a_class(folder):
    hand_in(**{f"s{i}": f"{RIGHT if i % 2 else BROKEN}\n# {i}\n" for i in range(6)})
    [script] = autograder("slurm", "--parts", "2", "--submissions", "the class", "--results", "my results")
    text = script.read_text()
    assert is_bash(text)
    assert "#SBATCH --array=1-2\n" in text
    assert re.search(r"#SBATCH --mem=\d+M\n", text)
    assert "submit this with sbatch" in bash(script).stderr
    for part in ("1", "2"):
        array = {"SLURM_ARRAY_TASK_ID": part, "SLURM_ARRAY_TASK_COUNT": "1", "SLURM_CPUS_PER_TASK": "1"}
        done = bash(script, BREAKFIX=str(BREAKFIX), **array)
        assert done.returncode == 0, done.stderr
    merged = breakfix("merge", "my results/part-1", "my results/part-2", "-o", "all")
    assert merged == {"grades": 6, "problems": [], "notes": []}
    assert breakfix("stats", "all")["lab91"]["states"] == {"failed": 3, "passed": 3}


def test_a_kubernetes_job_counts_parts_from_one(folder):
    [path] = autograder("kubernetes", "--parts", "3", "--roster", "the roster.csv")
    job = yaml.safe_load(path.read_text())
    assert (job["kind"], job["spec"]["completions"], job["spec"]["completionMode"]) == ("Job", 3, "Indexed")
    script = job["spec"]["template"]["spec"]["containers"][0]["args"][0]
    assert is_bash(script)
    done = bash("-c", script.replace("exec breakfix", "echo"), JOB_COMPLETION_INDEX="2")
    assert "--roster the roster.csv" in done.stdout
    assert "--shard 3/3" in done.stdout
    assert "--out results/part-3" in done.stdout


# -------------------------------------------------------------------------------------------------------------- GitHub


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_workflows_are_workflows(folder):
    students, instructor = (yaml.safe_load(path.read_text()) for path in autograder("github", "--parts", "3"))
    assert set(students["jobs"]) == {"check"}
    assert instructor["jobs"]["grade"]["strategy"]["matrix"]["part"] == [1, 2, 3]
    assert instructor["jobs"]["merge"]["needs"] == "grade"
    for workflow in (students, instructor):
        assert workflow["permissions"] == {"contents": "read"}
        assert all(("run" in step) != ("uses" in step) for step in steps(workflow))
        assert all(is_bash(step["run"]) for step in steps(workflow) if "run" in step)
        assert all(
            "${{" not in step.get("run", "") for step in steps(workflow)
        )  # nothing from outside gets into a shell


def test_a_students_push_is_checked_and_the_key_is_not_there(folder):
    [path, _] = autograder("github")
    assert Path("bundle/assignment.toml").read_text().split('key = "')[1][:32] not in path.read_text()
    script = next(step["run"] for step in steps(yaml.safe_load(path.read_text())) if step.get("name") == "Check")
    summary, place = folder / "summary.md", folder / "bundle" / "students"
    for source, code in ((BROKEN, 1), (RIGHT, 0)):
        (place / "lab91" / LAB.editable).write_text(source)
        environment = {"GITHUB_STEP_SUMMARY": str(summary), "PATH": f"{BREAKFIX.parent}:{os.environ['PATH']}"}
        done = bash("-c", f"cd '{place}' && {script}", **environment)
        assert done.returncode == code, done.stderr
    assert "### lab91" in summary.read_text()
    assert "2 of 10 points" in summary.read_text()
    assert "10 of 10 points" in summary.read_text()


# ------------------------------------------------------------------------------------------------------ what is refused


def test_nothing_is_overwritten_and_no_key_no_grader(folder):
    for place in ("gradescope", "slurm", "kubernetes", "github"):
        autograder(place)
        done = CliRunner().invoke(
            commands(),
            ["autograder", "--as", place, "--assignment", "bundle/assignment.toml", "-o", "grader"],
        )
        assert done.exit_code == 2
        assert "exists" in done.output
    students = "bundle/students/assignment.toml"
    done = CliRunner().invoke(commands(), ["autograder", "--as", "slurm", "--assignment", students, "-o", "other"])
    assert done.exit_code == 2
    assert "has no key" in done.output


@pytest.mark.parametrize("name", ["$(touch owned)", "`touch owned`", "a'; touch owned; '", 'a"b', "-rf", "a b\\"])
def test_a_path_is_a_path_and_no_command(folder, name):
    text = fill("slurm.sh", Place(submissions=name, results=name, roster=name).words([LAB]))
    assert is_bash(text)
    done = bash("-c", text, SLURM_ARRAY_TASK_ID="1", BREAKFIX="echo")
    assert not Path("owned").exists()
    assert name in done.stdout


def test_a_labs_extras_are_installed():
    lab = Catalog.read()["lab23"]
    assert re.fullmatch(r"breakfix\[onnx,plots\]==[\d.]+", requirement([LAB, lab]))
