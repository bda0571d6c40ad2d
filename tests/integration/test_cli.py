"""Every command of the learner as she would type it: what it says, its JSON, its exit code, and what can go wrong."""

import io
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from breakfix import catalog, cli
from breakfix.session import Session
from breakfix.workspace import STATE_FILE
from breakfix.zygote import ENVIRONMENT, Engine, EngineFailed

ROOT = Path(__file__).parents[1] / "fixtures" / "learner_root"
LABS = catalog.Catalog.read(ROOT)
SOLUTION = LABS["lab91"].solution.read_text("utf-8")
ALL = ["start", "run", "check", "watch", "hint", "explain", "list", "diff", "reset", "symptom", "doctor", "demo"]


@dataclass(frozen=True)
class Done:
    """One use of the command line."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture(scope="module")
def engine():
    """One warm engine for all: starting one is most of the time of a short command."""
    with Engine() as engine:
        yield engine


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, engine):
    """A learner's folder, with a name that needs care, in a home of its own, and the tiny labs alone."""
    folder = tmp_path / "my labs [课]"
    folder.mkdir()
    monkeypatch.chdir(folder)
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), catalog.ROOTS_VARIABLE: ""}
    for key, value in (home | ENVIRONMENT | {"COLUMNS": "100", "PYTHONSAFEPATH": "1"}).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(catalog, "own_root", lambda: ROOT)
    monkeypatch.setattr(Session, "engine", engine)
    return folder


@pytest.fixture
def breakfix(monkeypatch, capsys):
    """The command line, in this process."""

    def run(*arguments: str, stdin: str = "", terminal: bool = False) -> Done:
        monkeypatch.setattr(sys, "argv", ["breakfix", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setattr("breakfix.render.asking.can_ask", lambda: terminal)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Done(ended.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def started(breakfix, folder):
    """The learner's file of lab91, started."""
    breakfix("start", "lab91")
    return folder / "lab91" / "sums.py"


def state(folder: Path) -> dict:
    return json.loads((folder / STATE_FILE).read_text("utf-8"))["labs"]


# --------------------------------------------------------------------------------------------------------------- help


def test_help_shows_first_what_a_learner_needs_first(breakfix):
    done = breakfix("--help")
    places = [done.out.index(f"│ {name} ") for name in ALL]
    assert done.code == 0
    assert places == sorted(places)
    assert "0 passed, 1 not yet, 2 usage" in done.out.replace("\n", "")


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_help_and_json(breakfix, name):
    done = breakfix(name, "-h")
    assert done.code == 0
    assert "--json" in done.out


def test_no_command_shows_the_help(breakfix):
    done = breakfix()
    assert done.code in (0, 2)
    assert "start" in done.out + done.err


def test_version(breakfix):
    assert breakfix("--version").out.strip().count(".") >= 2


# -------------------------------------------------------------------------------------------------------------- start


def test_start_shows_the_readme_the_file_and_what_is_next(breakfix, folder):
    done = breakfix("start", "lab91")
    assert done.code == 0
    assert "invoice 1042" in done.out
    assert "Yours to fix: lab91/sums.py" in done.out
    assert "next: breakfix run lab91" in done.out
    assert (folder / "lab91" / "sums.py").is_file()


def test_start_never_overwrites(breakfix, started):
    started.write_text("mine")
    done = breakfix("start", "91")
    assert (done.code, started.read_text()) == (0, "mine")
    assert "Yours already: lab91/sums.py" in done.out


def test_start_without_a_name_goes_on_with_the_next_lab(breakfix, folder):
    assert breakfix("start", "--json").json == {
        "lab": "lab91", "file": str(folder / "lab91" / "sums.py"), "existed": False,
    }  # fmt: skip
    (folder / "lab91" / "sums.py").write_text(SOLUTION)
    assert breakfix("check", "lab91").code == 0
    assert breakfix("start", "--json").json["lab"] == "lab92"


def test_start_in_a_labs_folder_means_that_lab(breakfix, started, monkeypatch):
    monkeypatch.chdir(started.parent)
    done = breakfix("start", "--json")
    assert done.json == {"lab": "lab91", "file": str(started), "existed": True}


def test_start_says_what_this_machine_lacks(breakfix):
    done = breakfix("start", "lab93")
    assert done.code == 0
    assert "needs cuda" in done.out


def test_when_all_have_passed_start_says_so(breakfix, folder):
    for name in ("lab91", "lab92"):
        breakfix("start", name)
        shutil.copy(LABS[name].solution, folder / name)
    assert breakfix("check", "lab91", "lab92").code == 0
    done = breakfix("start")
    assert done.code == 2
    assert "every lab that this machine can run has passed" in done.err


# ---------------------------------------------------------------------------------------------------------------- run


def test_run_prints_the_evidence_and_what_is_next(breakfix, started):
    done = breakfix("run", "lab91", "--seed", "3")
    assert done.code == 0
    assert "Evidence of lab91/sums.py, seed 3, cpu" in done.out
    assert "long.totals" in done.out
    assert "next: breakfix check lab91" in done.out


def test_run_as_json_is_json_whatever_the_file_prints(breakfix, started):
    started.write_text("print('hello')\n" + SOLUTION.replace("return", "print('from inside'); return"))
    done = breakfix("run", "lab91", "--json")
    assert done.json["evidence"]["known.total"] == 6
    assert len(done.json["evidence"]["long.totals"]) == 20
    assert "from inside" in done.err


def test_run_writes_nan_so_that_json_can_hold_it(breakfix, started):
    started.write_text("def total(values): return float('nan')")
    assert breakfix("run", "lab91", "--json").json["evidence"]["short.total"] == "nan"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def total(:", "SyntaxError"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("def total(values): return 1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(0)", "SystemExit: 0"),  # its own exit code must not become ours
        ("import sys; sys.exit('[bold]bye')", "SystemExit: [bold]bye"),
        ("", "must define total(values) -> float"),
        ("total = 3", "there total is 3"),
        ("import bdb\nraise bdb.BdbQuit", "left the debugger"),
    ],
)
def test_run_tells_what_went_wrong_in_the_learners_own_lines(breakfix, started, source, says):
    started.write_text(source)
    done = breakfix("run", "lab91")
    assert done.code == 1
    assert says in done.out
    assert "subject.py" not in done.out
    assert "next: breakfix run" in done.out
    as_json = breakfix("run", "lab91", "--json")
    assert (as_json.code, as_json.json["state"]) == (1, "error")
    assert says in as_json.json["detail"]


def test_run_of_a_file_that_is_no_text(breakfix, started):
    started.write_bytes(b"# gr\xf6\xdfer\n")
    done = breakfix("run", "lab91")
    assert done.code == 1
    assert "is not a text file" in done.out


# -------------------------------------------------------------------------------------------------------------- check


def test_check_of_the_starter_says_what_failed_and_what_is_next(breakfix, started):
    done = breakfix("check", "lab91")
    assert done.code == 1
    assert "✗ failed  lab91  The total is off by one [of many] · 2 of 10 points" in done.out
    assert "at most 0 EUR" in done.out
    assert "next: breakfix hint lab91" in done.out


def test_check_of_a_fix_passes_is_remembered_and_leads_on(breakfix, started, folder):
    started.write_text(SOLUTION)
    done = breakfix("check", "lab91")
    assert done.code == 0
    assert "✓ passed" in done.out
    assert "breakfix explain lab91" in done.out
    assert "breakfix start lab92" in done.out
    assert {row["lab"]: row["status"] for row in breakfix("list", "--json").json}["lab91"] == "passed"
    started.write_text(SOLUTION + "\n")
    assert breakfix("list", "--json").json[0]["status"] == "changed since it passed"
    started.write_text(SOLUTION)
    assert breakfix("list", "--json").json[0]["status"] == "passed"


def test_check_as_json_is_the_verdict(breakfix, started):
    verdict = breakfix("check", "lab91", "--seed", "5", "--json").json
    assert (verdict["lab"], verdict["state"], verdict["seed"], verdict["points"]) == ("lab91", "failed", 5, [2, 10])
    assert [c["name"] for c in verdict["checks"]] == ["test_short", "test_long", "test_one_total_per_line"]
    assert verdict["checks"][0]["figures"][0]["bound"] == 0


def test_what_has_not_changed_is_not_judged_again(breakfix, started):
    first = breakfix("check", "lab91", "--json").json
    again = breakfix("check", "lab91")
    assert f"seed {first['seed']}" in again.out
    assert "unchanged since this verdict; --fresh judges it again" in again.out
    assert breakfix("check", "lab91", "--json", "--fresh").json["seed"] != first["seed"]
    started.write_text(started.read_text() + "\n# another thought\n")
    assert "unchanged" not in breakfix("check", "lab91").out


def test_check_inside_the_folder_needs_no_name(breakfix, started, monkeypatch):
    monkeypatch.chdir(started.parent)
    done = breakfix("check")
    assert done.code == 1
    assert "change sums.py and check again" in done.out


def test_check_judges_another_file_and_remembers_nothing(breakfix, started, folder):
    (folder / "other.py").write_text(SOLUTION)
    before = state(folder)
    assert breakfix("check", "lab91", "--file", "other.py").code == 0
    assert state(folder) == before


def test_of_several_labs_the_worst_exit_code(breakfix, started, folder):
    breakfix("start", "lab92")
    started.write_text(SOLUTION)
    done = breakfix("check", "lab91", "lab92", "--json")
    assert (done.code, [v["state"] for v in done.json]) == (1, ["passed", "failed"])
    (folder / "lab92" / "means.py").write_text("def mean(values): return sum(values) / len(values), 99")
    assert breakfix("check", "lab92").code == 5
    started.write_text("while True: pass")
    done = breakfix("check", "lab91", "lab92", "--json")
    assert (done.code, [v["state"] for v in done.json]) == (5, ["timeout", "not measurable"])


def test_a_timeout_says_where_it_stood(breakfix, started):
    started.write_text("def total(values):\n    while True:\n        pass\n")
    done = breakfix("check", "lab91")
    assert done.code == 4
    assert "! timeout" in done.out
    assert "line 2" in done.out or "line 3" in done.out
    assert "breakfix run lab91" in done.out


@pytest.mark.parametrize(
    ("source", "says"), [("def total(:", "SyntaxError"), ("def total(v): return v[99]", "IndexError"), ("", "Contract")]
)
def test_an_error_is_not_yet_with_the_learners_own_traceback(breakfix, started, source, says):
    started.write_text(source)
    done = breakfix("check", "lab91")
    assert done.code == 1
    assert "! error" in done.out
    assert says in done.out
    assert "measure.py" not in done.out


def test_what_this_machine_lacks_is_exit_code_3(breakfix):
    breakfix("start", "lab93")
    for command in ("check", "run"):
        done = breakfix(command, "lab93")
        assert done.code == 3
        assert "needs cuda" in done.out
        assert breakfix(command, "lab93", "--json").json["state"] == "needs cuda"


def test_a_later_failure_of_the_same_content_takes_the_pass_back(breakfix, started, folder):
    broken = folder.parent / "broken"
    flaky = "import os\n" + SOLUTION.replace("sum(values)", f"sum(values) + os.path.exists({str(broken)!r})")
    started.write_text(flaky)
    assert breakfix("check", "lab91").code == 0
    broken.touch()
    assert breakfix("check", "lab91", "--fresh").code == 1
    assert breakfix("list", "--json").json[0]["status"] == "started"


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("command", ["start", "run", "check", "watch", "hint", "explain", "diff", "reset"])
def test_an_unknown_lab_is_a_wrong_use_and_says_which_there_are(breakfix, command):
    done = breakfix(command, "lab12")
    assert (done.code, done.out) == (2, "")
    assert "there is no lab 'lab12'; there are lab91, lab92, lab93" in done.err


@pytest.mark.parametrize("command", ["run", "check", "hint", "explain", "diff", "reset"])
def test_without_a_name_and_outside_of_a_labs_folder_it_asks_which(breakfix, command):
    done = breakfix(command)
    assert done.code == 2
    assert "which lab?" in done.err


@pytest.mark.parametrize("command", ["run", "check", "diff"])
def test_a_lab_that_was_not_started_says_how_to(breakfix, command):
    done = breakfix(command, "lab91")
    assert done.code == 2
    assert "lab91/sums.py is not there; `breakfix start lab91` makes it" in done.err


def test_a_lab_with_faults_is_told_apart(breakfix):
    done = breakfix("check", "lab94")
    assert done.code == 3
    assert "lab94_cannot_be_read/lab.toml: is not valid TOML" in done.err


@pytest.mark.parametrize("command", ["start", "run", "check", "hint", "list"])
def test_a_broken_state_file_stops_what_needs_it(breakfix, folder, command):
    (folder / STATE_FILE).write_text("{ half")
    done = breakfix(command, *(["lab91"] if command != "list" else []))
    assert done.code == 2
    assert str(folder / STATE_FILE) in done.err
    assert "move it away" in done.err
    assert (folder / STATE_FILE).read_text() == "{ half"


def test_a_broken_state_file_stops_nothing_else(breakfix, folder):
    (folder / STATE_FILE).write_text("{ half")
    assert breakfix("symptom", "the total is off by one").code == 0
    assert breakfix("demo", "lab91").code == 0
    doctor = breakfix("doctor", "--json")
    assert doctor.code == 0
    assert "cannot be read" in doctor.json["folders"]["yours"]


@pytest.mark.parametrize("command", ["run", "check", "watch", "demo"])
@pytest.mark.parametrize("device", ["gpu", "cuda:", "cpu:0", "", "CPU"])
def test_an_unknown_device_is_a_wrong_use(breakfix, started, command, device):
    done = breakfix(command, "lab91", "--device", device)
    assert done.code == 2
    assert "choose cpu, cuda" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["check", "--no-such-option"],
        ["check", "lab91", "--seed", "many"],
        ["check", "lab91", "--file", "no_such_file.py"],
        ["check", "lab91", "--file", "."],
        ["check", "lab91", "lab92", "--file", "other.py"],
        ["start", "lab91", "lab92"],
    ],
)
def test_a_wrong_use_is_exit_code_2(breakfix, folder, arguments):
    (folder / "other.py").touch()
    done = breakfix(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err


def test_an_engine_that_cannot_start_is_the_environments_fault(breakfix, started, monkeypatch):
    def fail(*_, **__):
        raise EngineFailed("the judging process ended before its verdict\nno [memory]")

    monkeypatch.setattr(Engine, "judge", fail)
    done = breakfix("check", "lab91")
    assert done.code == 3
    assert "no [memory]" in done.err


def test_a_full_disk_is_the_environments_fault_after_the_verdict(breakfix, started, folder, monkeypatch):
    started.write_text(SOLUTION)

    def full(*_):
        raise OSError(28, "No space left on device", str(folder / STATE_FILE))

    monkeypatch.setattr("breakfix.state.write", full)
    done = breakfix("check", "lab91")
    assert done.code == 3
    assert "✓ passed" in done.out
    assert f"No space left on device: {folder / STATE_FILE}" in done.err


# --------------------------------------------------------------------------------------------------------------- hints


def test_hints_come_one_by_one_and_stay(breakfix, folder):
    for number in (1, 2, 3, 4, 4):
        done = breakfix("hint", "lab91")
        assert done.code == 0
        assert done.out.count("hint ") >= number
        assert f"hint {number} of 4" in done.out
    assert "Where to look: hint number one [of four]." in done.out
    assert "breakfix explain lab91" in done.out
    assert state(folder)["lab91"]["hints"] == 4


def test_hint_again_takes_no_new_one(breakfix):
    assert "no hint taken yet" in breakfix("hint", "lab91", "--again").out
    assert breakfix("hint", "lab91", "--json").json["seen"] == 1
    again = breakfix("hint", "lab91", "--again", "--json").json
    assert (again["seen"], again["of"], len(again["hints"])) == (1, 4, 1)


# ------------------------------------------------------------------------------------------------------ explain, diff


@pytest.mark.parametrize(
    ("command", "shows"), [("explain", "The slice drops"), ("diff", "+    return float(sum(values))")]
)
class TestBeforeAPass:
    """`explain` and `diff` ask once, and record it."""

    def test_without_a_terminal_it_wants_yes(self, breakfix, started, folder, command, shows):
        done = breakfix(command, "lab91")
        assert done.code == 2
        assert "--yes shows" in done.err
        assert shows not in done.out
        assert "solution_seen" not in state(folder)["lab91"]

    @pytest.mark.parametrize("answer", ["n\n", "\n", ""])
    def test_anything_but_yes_shows_nothing(self, breakfix, started, folder, command, shows, answer):
        done = breakfix(command, "lab91", stdin=answer, terminal=True)
        assert done.code == 1
        assert "has not passed yet" in done.out
        assert shows not in done.out
        assert "solution_seen" not in state(folder)["lab91"]

    def test_a_yes_is_recorded_and_not_asked_for_again(self, breakfix, started, folder, command, shows):
        done = breakfix(command, "lab91", stdin="y\n", terminal=True)
        assert done.code == 0
        assert shows in done.out
        seen = state(folder)["lab91"]["solution_seen"]
        again = breakfix(command, "lab91", terminal=True)
        assert (again.code, "has not passed yet" in again.out) == (0, False)
        assert state(folder)["lab91"]["solution_seen"] == seen
        assert "solution seen" in " ".join(breakfix("list").out.split())

    def test_after_a_pass_nobody_asks(self, breakfix, started, folder, command, shows):
        started.write_text(SOLUTION.replace("invoice", "bill"))
        assert breakfix("check", "lab91").code == 0
        done = breakfix(command, "lab91", terminal=True)
        assert (done.code, "has not passed yet" in done.out) == (0, False)
        assert "solution_seen" not in state(folder)["lab91"]


def test_explain_fills_in_the_evidence_of_a_real_run(breakfix, started):
    done = breakfix("explain", "lab91", "--yes")
    assert "{evidence}" not in done.out
    assert "error, short" in done.out
    assert "≤ 0 EUR" in done.out
    assert "math.fsum" in done.out
    text = breakfix("explain", "lab91", "--json").json["explanation"]
    assert "{evidence}" not in text
    assert "error, short" in text
    assert "≤ 0 EUR" in text


def test_diff_as_json_and_to_the_starter(breakfix, started):
    assert breakfix("diff", "lab91", "--starter").out.strip() == "no difference"
    started.write_text(SOLUTION)
    done = breakfix("diff", "lab91", "--starter", "--json").json
    assert (done["against"], done["diff"][0]) == ("starter", "--- lab91/sums.py")
    assert breakfix("diff", "lab91", "--yes").out.strip() == "no difference"


def test_a_diff_stays_a_patch_in_a_narrow_terminal(breakfix, started, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    started.write_text("# " + "a long line " * 30 + "\n" + SOLUTION)
    assert "-# " + "a long line " * 29 in breakfix("diff", "lab91", "--yes").out


# --------------------------------------------------------------------------------------------- list, reset, symptom …


def test_list_shows_every_lab_how_far_one_is_and_what_cannot_be_read(breakfix, started):
    done = breakfix("list")
    assert done.code == 0
    assert "The total is off by one [of many]" in done.out
    assert "0 of 3 passed" in done.out
    assert "needs cuda" in done.out
    assert "lab94_cannot_be_read cannot be read" in done.err.replace("\n", " ")
    rows = breakfix("list", "--json").json
    assert [(row["lab"], row["status"], row["lacking"]) for row in rows] == [
        ("lab91", "started", None), ("lab92", "not started", None), ("lab93", "not started", "needs cuda"),
    ]  # fmt: skip


def test_reset_keeps_what_was_there(breakfix, started):
    started.write_text("mine")
    done = breakfix("reset", "lab91", "--json")
    assert (done.code, Path(done.json["kept"]).read_text()) == (0, "mine")
    assert "sum(values[1:])" in started.read_text()
    done = breakfix("reset", "lab91")
    assert "lab91/sums.py is the starter again" in done.out
    assert "yours is kept as lab91/sums." in done.out


def test_symptom_finds_labs_by_words_and_by_standard_input(breakfix):
    done = breakfix("symptom", "the", "total", "is", "off")
    assert done.code == 0
    assert "lab91  The total is off by one [of many]" in done.out
    assert "next: breakfix start lab91" in done.out
    for arguments in ([], ["-"]):
        piped = breakfix(
            "symptom", *arguments, "--json", stdin="AssertionError: total differs from the sum of its lines"
        )
        assert piped.json["labs"][0]["lab"] == "lab91"
    assert breakfix("symptom", "总和差一", "--json").json["labs"][0]["lab"] == "lab91"


def test_symptom_reads_a_log(breakfix, folder):
    log = folder / "train.log"
    log.write_text("step 1\nstep 2\nAssertionError: total differs from the sum of its lines\n")
    assert breakfix("symptom", "--file", "train.log", "--json").json["labs"][0]["lab"] == "lab91"
    done = breakfix("symptom", "--file", "other.log")
    assert (done.code, "other.log cannot be read" in done.err) == (2, True)


def test_symptom_says_when_nothing_fits(breakfix):
    done = breakfix("symptom", "my cat sat on the mat")
    assert done.code == 1
    assert "no lab covers this" in done.out
    assert not breakfix("symptom", "my cat sat on the mat", "--json").json["covered"]
    assert breakfix("symptom", stdin="").code == 1


def test_doctor_says_what_runs_here(breakfix, folder):
    done = breakfix("doctor")
    assert done.code == 0
    assert str(folder) in done.out.replace("\n", "").replace(" " * 24, "") or "my labs" in done.out
    report = breakfix("doctor", "--json").json
    assert report["labs"]["lab91"] == "runs here"
    assert "CUDA device" in report["labs"]["lab93"]
    assert "cannot be read" in report["labs"]["lab94_cannot_be_read"]
    assert report["folders"]["yours"] == str(folder)


# --------------------------------------------------------------------------------------------------------- predictions


def test_predictions_are_asked_once_and_scored_once(breakfix, started, folder):
    done = breakfix("check", "lab91", stdin="a\na\n", terminal=True)
    assert "Before you run it" in done.out
    assert "≠ The total of 1, 2 and 3 is\n  you said 6, measured 5" in done.out
    assert "✓ And of nothing?\n  you said zero, measured zero" in done.out
    again = breakfix("check", "lab91", terminal=True)
    assert "Before you run it" not in again.out
    assert "you said" not in again.out
    assert state(folder)["lab91"]["predictions"] == ["6", "zero"]


def test_predictions_are_about_the_starter_whatever_the_file_says_by_then(breakfix, started):
    started.write_text(SOLUTION)
    assert "you said 6, measured 5" in breakfix("run", "lab91", stdin="a\n\n", terminal=True).out


def test_predictions_can_be_skipped(breakfix, started, folder):
    done = breakfix("run", "lab91", stdin="\n\n", terminal=True)
    assert done.code == 0
    assert "you said" not in done.out
    assert state(folder)["lab91"]["predictions"] == [None, None]


def test_nobody_is_asked_without_a_terminal_or_for_json(breakfix, started, folder):
    breakfix("check", "lab91")
    breakfix("run", "lab91", "--json", terminal=True)
    assert "predictions" not in state(folder)["lab91"]


# ---------------------------------------------------------------------------------------------------------------- demo


def test_demo_shows_broken_against_fixed_and_not_how(breakfix, folder):
    done = breakfix("demo", "lab91")
    assert done.code == 0
    for what in (
        "1 failure on", "invoice 1042", "error, short", "≤ 0 EUR", "Total of the first n lines",
        "broken  ✗ failed, 1 of 3 checks pass", "fixed   ✓ passed, 3 of 3 checks pass", "breakfix start",
    ):  # fmt: skip
        assert what in done.out
    assert "slice" not in done.out
    assert list(folder.iterdir()) == []


def test_demo_as_json_holds_both_verdicts(breakfix):
    shown = breakfix("demo", "lab91", "lab92", "--seed", "4", "--json").json
    assert [(s["lab"], s["broken"]["state"], s["fixed"]["state"], s["fixed"]["seed"]) for s in shown] == [
        ("lab91", "failed", "passed", 4), ("lab92", "failed", "passed", 4),
    ]  # fmt: skip


def test_demo_goes_on_after_a_lab_that_cannot_be_shown(breakfix):
    done = breakfix("demo", "lab94", "lab93", "lab91")
    assert done.code == 3
    text = " ".join(done.out.split())
    assert "lab94 not shown: its files have faults" in text
    assert "not shown: needs cuda" in text
    assert "✓ passed, 3 of 3 checks pass" in text
    assert "lab94, lab93: not shown as meant" in text
    shown = breakfix("demo", "lab94", "lab91", "--json").json
    assert (shown[0]["lab"], shown[1]["fixed"]["state"]) == ("lab94", "passed")
    assert "not valid TOML" in shown[0]["trouble"]


def test_demo_of_the_commissioned_labs_names_those_that_are_not_there(breakfix):
    done = breakfix("demo")  # the tiny root has none of them
    assert done.code == 3
    assert done.out.count("not shown: there is no lab") == 5


def test_demo_of_a_name_that_somebody_typed_is_a_wrong_use(breakfix):
    done = breakfix("demo", "lab12")
    assert done.code == 2
    assert "there is no lab 'lab12'" in done.err


# ------------------------------------------------------------------------------------------------------------- output


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": "xterm-256color"}])
def test_a_pipe_gets_no_escape_codes(breakfix, started, monkeypatch, environment):
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    for command in (["check", "lab91"], ["list"], ["run", "lab91"], ["start", "lab91"], ["hint", "lab91"]):
        assert "\x1b" not in breakfix(*command).out


def test_a_strange_folder_in_a_terminal_that_knows_ascii_alone(started, folder, monkeypatch):
    """A question mark for a sign, and never a traceback; and what lies there does not stand in for Python's own."""
    for key, value in {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("PYTHONSAFEPATH")
    for name in ("random.py", "torch.py", "pytest.py", "breakfix.py"):
        (folder / name).write_text("raise RuntimeError('somebody imported me')")
    program = (
        "import sys; sys.path[:1] = []; from breakfix import catalog, cli; "  # as the installed command begins
        f"catalog.own_root = lambda: catalog.Path({str(ROOT)!r}); cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "check", "lab91"], cwd=folder, capture_output=True, text=True, encoding="ascii"
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "? failed  lab91" in done.stdout
