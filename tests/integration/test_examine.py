"""`breakfix examine`: the corpus, the labs' own broken files, and that a script runs as it would without it."""

import json
import os
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from breakfix.examine import launch, page, report
from breakfix.examine.findings import CERTAIN, KINDS, LIKELY, NOTE, Finding
from breakfix.examine.lines import Line

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "examine"
BROKEN, HEALTHY = sorted((FIXTURES / "broken").glob("*.py")), sorted((FIXTURES / "healthy").glob("*.py"))
HOSTILE = [
    FIXTURES / "hostile" / f"{name}.py"
    for name in ("patches", "forks", "thread_exit", "modes", "compiled", "long_steps")
]
CORPUS = [*BROKEN, *HEALTHY]
LABS = {
    "lab00": "train.py", "lab04": "train.py", "lab07": "detect.py", "lab08": "train.py", "lab09": "train.py",
    "lab11": "clinic.py", "lab12": "train.py",
}  # fmt: skip
LAB_FILES = {next((ROOT / "labs").glob(f"{lab}_*")) / name: lab for lab, name in LABS.items()}
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="scripts are forked from a warm process")


def wanted(path: Path) -> str:
    return path.read_text("utf-8").partition("\n")[0].partition("wanted: ")[2]


@cache
def forked(hooked: bool) -> dict[Path, dict]:
    """Every script's outcome, and with the hook its report."""
    work = [
        sys.executable,
        str(FIXTURES / "run_many.py"),
        *map(str, (*CORPUS, *HOSTILE, *(LAB_FILES if hooked else ()))),
    ]
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        environment = launch.hooked(ENVIRONMENT, folder) if hooked else ENVIRONMENT
        done = subprocess.run(
            work, env=environment, capture_output=True, text=True, timeout=600, cwd=folder, check=True
        )
        ran = {Path(line["file"]): line for line in map(json.loads, done.stdout.splitlines())}
        records = [json.loads(path.read_text("utf-8")) for path in Path(folder).glob("*.json")]
        assert not list(Path(folder).glob("*.failed"))
    for line in ran.values():
        own = [r for r in records if {r["pid"], r["parent"]} & set(line["pids"])]
        line["report"] = report.report_of(launch.Run(line["code"], 1.0, own), [line["file"]])
    return ran


def names(found: report.Report, *ranks: str) -> list[str]:
    return [t.finding.name for t in found.findings if not ranks or t.finding.rank in ranks]


@pytest.mark.parametrize("path", BROKEN, ids=lambda p: p.stem)
def test_the_right_finding_is_among_the_first_three(path):
    assert wanted(path) in names(forked(True)[path]["report"])[:3]


@pytest.mark.parametrize("path", HEALTHY, ids=lambda p: p.stem)
def test_a_healthy_script_gets_notes_at_most(path):
    assert names(forked(True)[path]["report"], CERTAIN, LIKELY) == []


@pytest.mark.parametrize("path", LAB_FILES, ids=lambda p: p.parent.name[:5])
def test_a_broken_file_of_a_lab_leads_to_it(path):
    assert forked(True)[path]["report"].findings[0].lab == LAB_FILES[path]


@pytest.mark.parametrize("path", [*CORPUS, *HOSTILE], ids=lambda p: p.stem)
def test_a_script_runs_as_without_probes(path):
    bare, examined = (forked(hooked)[path] for hooked in (False, True))
    assert [examined[key] for key in ("code", "out", "graphs")] == [bare[key] for key in ("code", "out", "graphs")]
    assert set(examined["report"].probes.values()) <= {"ran"}


def test_a_traceback_is_untouched_and_the_findings_are_told():
    crash = FIXTURES / "broken" / "crash.py"
    bare, examined = (forked(hooked)[crash] for hooked in (False, True))
    assert examined["code"] == 1
    assert examined["err"] == bare["err"]


def test_children_that_leave_at_once_are_seen():
    found = forked(True)[FIXTURES / "hostile" / "forks.py"]["report"]
    assert names(found) == ["zero-grad"]
    assert found.seen["steps"] == 6
    assert len(found.findings[0].processes) == 2


def test_the_cost_is_small_where_steps_are_longer_than_a_millisecond():
    line = forked(True)[FIXTURES / "hostile" / "long_steps.py"]["report"]
    (process,) = line.processes
    whole = process["wall"]
    assert process["seconds"] <= 0.25 * (whole - process["seconds"]) + 0.5


# -------------------------------------------------------------------------------------------------- the command itself


def breakfix(*arguments: str, cwd: Path, script: list[str], **options):
    command = [sys.executable, "-m", "breakfix", "examine", *arguments, "--", sys.executable, *script]
    settings = {"env": ENVIRONMENT, "capture_output": True, "text": True, "timeout": 120} | options
    return subprocess.run(command, cwd=cwd, **settings)


def test_each_rank_is_seen_under_torchrun(tmp_path):
    path = FIXTURES / "broken" / "ddp_epochs.py"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = breakfix("--json", cwd=tmp_path, script=[*launcher, str(path)])
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert [(f["name"], f["processes"]) for f in found["findings"]] == [(wanted(path), ["rank 0", "rank 1"])]
    assert found["seen"]["collectives"]["count"] >= 1
    assert not list(tmp_path.iterdir())


def test_summary_page_and_spawned_workers(tmp_path):
    file = tmp_path / "report.html"
    done = breakfix("--html", str(file), cwd=tmp_path, script=[str(FIXTURES / "hostile" / "spawns.py")])
    assert done.returncode == 0
    assert re.fullmatch(r"\d+\.\d{6}\n", done.stdout)
    assert "4 steps" in done.stderr
    assert "cost: probes" in done.stderr
    assert "<svg" in file.read_text("utf-8")
    assert list(tmp_path.iterdir()) == [file]


def test_arguments_input_code_and_a_hidden_sitecustomize_pass_through(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os; os.environ['OWN_SITECUSTOMIZE'] = 'ran'", "utf-8")
    script = [str(FIXTURES / "hostile" / "passes_through.py"), "--lr", "1", "-h"]
    done = breakfix(cwd=tmp_path, script=script, env=ENVIRONMENT | {"PYTHONPATH": str(own)}, input="typed")
    assert done.stdout == "['--lr', '1', '-h'] typed ran ['own'] False\nNone 1 []\n"
    assert done.returncode == 7
    assert done.stderr.startswith("to stderr\n")
    assert "Nothing was seen" in done.stderr


def test_signals_pass_through(tmp_path):
    script = str(FIXTURES / "hostile" / "waits.py")
    command = [sys.executable, "-m", "breakfix", "examine", "--", sys.executable, script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT, cwd=tmp_path
    ) as it:
        assert it.stdout.readline() == b"ready\n"
        it.send_signal(signal.SIGTERM)
        assert it.wait(20) == 5


def test_a_command_that_is_not_there_is_said_to_be(tmp_path):
    command = [sys.executable, "-m", "breakfix", "examine", "--", "no-such-command"]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "no-such-command" in done.stderr) == (2, True)


# -------------------------------------------------------------------------------------------------------- the report


def record(*findings: Finding, **more) -> dict:
    empty = {"pid": 1, "parent": 0, "rank": None, "argv": [], "torch": "", "python": "", "steps": 3, "backwards": 3}
    empty |= {
        "root_calls": 0,
        "probes": {},
        "seconds": 0.1,
        "attached_in": 0.0,
        "wall": 1.0,
        "crash": None,
        "figures": {},
    }
    return empty | {"findings": [f.to_json() for f in findings]} | more


def made(*records: dict, silence=()) -> report.Report:
    return report.report_of(launch.Run(0, 1.0, list(records)), ["python", "x.py"], silence)


def test_ten_findings_at_most_and_the_certain_first():
    every = [Finding(name, NOTE, "why") for name in KINDS][:12]
    found = made(record(*every, Finding("graph-leak", CERTAIN, "why", Line("x.py", 3, "f"))))
    assert (len(found.findings), found.left_out, found.findings[0].finding.rank) == (10, 3, CERTAIN)


def test_intended_cases_can_be_silenced(tmp_path, monkeypatch):
    script = tmp_path / "x.py"
    script.write_text("a = 1  # breakfix: ok graph-leak\n# breakfix: ok loader-wait\nb = 2\n", "utf-8")
    at = [Line(str(script), number, "f") for number in (1, 3)]
    findings = [Finding("graph-leak", CERTAIN, "why", line) for line in at]
    findings += [Finding(name, LIKELY, "why", at[1]) for name in ("loader-wait", "zero-grad", "no-gradient")]
    monkeypatch.setenv(report.VARIABLE, "no-gradient")
    found = made(record(*findings), silence=["zero-grad"])
    assert [(t.finding.name, t.finding.line) for t in found.findings] == [("graph-leak", at[1])]
    assert sorted(found.silenced) == ["graph-leak", "loader-wait", "no-gradient", "zero-grad"]


def test_ranks_that_call_different_collectives_are_told():
    ranks = [
        record(
            rank=str(i), pid=i, figures={"collectives": {"default_group": {"1": ["a", "all_reduce"], "2": [op, op]}}}
        )
        for i, op in enumerate(("barrier", "broadcast"))
    ]
    (told,) = made(*ranks).findings
    assert (told.finding.name, told.finding.rank) == ("ranks-differ", CERTAIN)


def test_the_page_asks_nobody_for_anything():
    steps = {"timeline_ms": [{"load": 1.0, "rest": 2.0, "backward": 3.0, "step": 0.5}] * 5}
    text = page.html(made(record(Finding("zero-grad", CERTAIN, "1 < 2"), figures=steps)))
    assert "http" not in text
    assert "1 &lt; 2" in text
    assert text.count("<rect") == 5 * 4 + 4


def test_every_finding_leads_to_a_lab():
    labs = {path.name[:5] for path in (ROOT / "labs").glob("lab*")}
    assert {kind.lab for kind in KINDS.values()} <= labs


def test_a_probe_that_fails_is_taken_off():
    from breakfix.examine.events import Probe, Watch

    class Failing(Probe):
        name = "failing"

        def step_begins(self, *what):
            raise RuntimeError("no")

    watch = Watch([Failing])
    watch.tell("step_begins", None, None)
    watch.tell("step_begins", None, None)
    assert watch.off == {"failing": "RuntimeError: no"}


def test_the_peak_of_recorded_allocations_has_a_line():
    from breakfix.examine.memory import peak_of

    def event(action, addr, size, line):
        return {"action": action, "addr": addr, "size": size, "frames": [{"filename": __file__, "line": line}]}

    trace = [event("alloc", 1, 100, 10), event("alloc", 2, 50, 20), event("free_requested", 1, 100, 0)]
    found = peak_of([*trace, event("alloc", 3, 60, 30)])
    assert found == {
        "bytes": 150,
        "line": "test_examine.py:20",
        "held_by_line": {"test_examine.py:10": 100, "test_examine.py:20": 50},
    }
