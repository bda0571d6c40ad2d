"""What can only be seen by running a lab: each way in which it can be at fault is caught, and nothing is judged twice.

One small lab, always in the same folder, is broken in one way per test. What a test leaves as it was is judged once,
thanks to the cache that the tests share; so a rule that the cache would hide shows here, too.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Lock

import pytest
from typer.testing import CliRunner

from breakfix import judge, rules, verify
from breakfix.cache import VerdictCache
from breakfix.catalog import Catalog, Lab, read_lab
from breakfix.cli import app, author
from breakfix.scaffold import new_lab
from breakfix.subject import Job
from breakfix.verify import cases_of
from breakfix.zygote import Engine

TODO = re.compile(r"\bTODO\b:? ?")
KEPT = {"log_softmax.py", "left_in_eval.py"}  # variants: with the starter, enough to break every check
CHEAP = """$ python -c "print('loss nan')\""""  # a command that need not import torch


class Judging:
    """The engine, and the names of the files that it was asked to judge."""

    def __init__(self, engine: Engine):
        self.engine, self.names, self.free = engine, [], Lock()

    def start(self, *labs):
        """As the engine: two that start it at once would start two processes, and lose one."""
        assert self.free.acquire(blocking=False)
        time.sleep(0.01)
        self.engine.start(*labs)
        self.free.release()

    def judge(self, lab, path, *rest, **options):
        self.names.append(f"{Path(path).parent.name}/{Path(path).name}".replace(lab.folder + "/", ""))
        return self.engine.judge(lab, path, *rest, **options)


@pytest.fixture(scope="module")
def engine():
    with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def user_cache(tmp_path_factory) -> Path:
    """What XDG_CACHE_HOME is for the command line."""
    return tmp_path_factory.mktemp("user-cache")


@pytest.fixture(scope="module")
def cache(user_cache) -> VerdictCache:
    """The cache that `breakfix verify` uses."""
    return VerdictCache(user_cache / "breakfix" / "verified")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Lab:
    """A lab as `breakfix new` makes it, without the word TODO."""
    lab = new_lab("scores_depend_on_the_batch", tmp_path_factory.mktemp("pristine"), number=90)
    for file in lab.root.rglob("*.*"):
        file.write_text(TODO.sub("", file.read_text("utf-8")), "utf-8")
    replace(lab.path / "README.md", "$ python train.py", CHEAP)
    return lab


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Where every test has its lab: a cached verdict holds for one path."""
    return tmp_path_factory.mktemp("labs") / "root"


@pytest.fixture
def complete(pristine, place, monkeypatch) -> Lab:
    """A copy of that lab, on the release that counts as pinned."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(pristine.root, place)
    monkeypatch.setattr(verify, "PINNED", importlib.metadata.version("torch").partition("+")[0])
    return read_lab(place / "labs" / pristine.folder)


@pytest.fixture
def lab(complete, monkeypatch) -> Lab:
    """The same with two of its variants, which are all that the rules ask for here: tests take less time."""
    for variant in complete.variants:
        variant.path.unlink() if variant.path.name not in KEPT else None
    monkeypatch.setattr(rules, "MIN_RIGHT", 1)
    monkeypatch.setattr(rules, "MIN_WRONG", 1)
    return complete


@pytest.fixture
def judging(engine) -> Judging:
    return Judging(engine)


@pytest.fixture
def report(lab, judging, cache):
    """Verify the lab as it is now."""

    def verified(**options) -> verify.Report:
        options = {"cache": cache} | options
        return verify.verify(read_lab(lab.path), Catalog.read(lab.root), judging, **options)

    return verified


@pytest.fixture
def problems(report):
    """What verification complains of now."""
    return lambda **options: list(map(str, report(**options).problems))


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")


def variant(lab: Lab, name: str) -> Path:
    return lab.tests_path / name


# ---------------------------------------------------------------------------------------------------------- verdicts


def test_a_good_lab_holds(complete, engine, cache):
    """A new lab without the word TODO: each of its files is judged once, and there is nothing to complain of."""
    done, catalog = [], Catalog.read(complete.root)
    report = verify.verify(complete, catalog, engine, cache=cache, on_step=lambda *step: done.append(step))
    assert report.problems == []
    assert report.holds
    roles = [role for role, _ in report.verdicts]
    assert roles[:2] == ["starter", "solution"]
    assert len(roles) == len(set(roles)) == 10
    assert done == [(i, 10, f"{role}, seed 1") for i, role in enumerate(roles, 1)]


def test_a_starter_that_passes(lab, problems):
    """A lab that is solved already."""
    shutil.copy(lab.solution, lab.starter)
    (told,) = problems()
    assert told.startswith(
        f"labs/{lab.folder}/train.py, seed 1: passes; it must fail test_equals_float64, test_the_batch"
    )


def test_a_starter_that_fails_otherwise(lab, problems):
    """The first line of test_checks.py is what must be corrected, unless the checks are."""
    replace(lab.checks_path, "# starter: ", "# starter: test_the_model_stays_as_it_was ")
    (told,) = problems()
    assert (
        "train.py, seed 1: fails test_equals_float64, test_the_batch_changes_nothing; declared is test_equals" in told
    )
    assert "Correct the first line of test_checks.py, or the checks" in told


def test_a_solution_that_fails(lab, problems):
    """It is told which check it failed, and by how much."""
    shutil.copy(lab.starter, lab.solution)
    (told,) = problems()
    assert told.startswith(
        f"solutions/{lab.folder}/train.py, seed 1: must pass and is failed; correct it or the checks: "
    )
    assert re.search(r"test_equals_float64: error, moderate: [\d.]+, at most 0.001", told)


def test_a_solution_that_raises(lab, problems):
    """The traceback is part of what is told."""
    replace(lab.solution, "    training = model.training\n", "    training = model.trainin\n")
    (told,) = problems()
    assert "must pass and is error; correct it or the checks: Traceback" in told
    assert "object has no attribute 'trainin'" in told


def test_a_right_variant_that_fails(lab, problems):
    path = variant(lab, "right/log_softmax.py")
    replace(path, "dim=-1", "dim=0")
    (told,) = problems()
    assert told.startswith(f"tests/labs/{lab.folder}/right/log_softmax.py, seed 1: must pass and is failed; correct it")


WRONG = "wrong/left_in_eval.py"  # fails test_the_model_stays_as_it_was and nothing else


def declare(lab: Lab, names: str) -> None:
    replace(variant(lab, WRONG), "# wrong: test_the_model_stays_as_it_was", f"# wrong: {names}")


def repair(lab: Lab) -> None:
    """Make the wrong variant right."""
    head = variant(lab, WRONG).read_text("utf-8").splitlines(keepends=True)[:2]
    variant(lab, WRONG).write_text("".join(head) + lab.solution.read_text("utf-8"), "utf-8")


def test_a_wrong_variant_that_passes(lab, problems):
    """The one fault that no verification may miss."""
    repair(lab)
    (told,) = problems()
    assert told.startswith(
        f"tests/labs/{lab.folder}/{WRONG}, seed 1: passes; it must fail test_the_model_stays_as_it_was."
    )
    assert told.endswith("Sharpen a check, or drop the variant")


@pytest.mark.parametrize("more", ["test_equals_float64", "test_equals_float64 test_the_batch_changes_nothing"])
def test_a_wrong_variant_that_fails_fewer_checks(lab, problems, more):
    """On the pinned release exactly the named checks must fail."""
    declare(lab, f"test_the_model_stays_as_it_was {more}")
    (told,) = problems()
    assert f"{WRONG}, seed 1: fails test_the_model_stays_as_it_was; declared is test_equals_float64, " in told
    assert "Correct the first line of the file, or the checks" in told


def test_a_wrong_variant_that_fails_more_checks(lab, problems):
    """One more is a fault, too: somebody has not understood what the variant breaks."""
    replace(variant(lab, WRONG), "dim=-1", "dim=0")
    (told,) = problems()
    assert f"{WRONG}, seed 1: fails test_equals_float64, test_the_batch_changes_nothing, test_the_model" in told
    assert "; declared is test_the_model_stays_as_it_was. Correct the first line of the file, or the checks" in told


def test_a_wrong_variant_that_never_came_to_the_checks(lab, problems):
    """A state is not a failed check; what went wrong is told, too."""
    replace(variant(lab, WRONG), "model.eval()", "model.evaluate()")
    (told,) = problems()
    assert f"{WRONG}, seed 1: fails error; declared is test_the_model_stays_as_it_was." in told
    assert "has no attribute 'evaluate'" in told


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("test_the_model_stays_as_it_was test_equals_float64", []),  # one of them is enough
        ("test_equals_float64", ["none of test_equals_float64, which the first line of the file declares"]),
        (
            "timeout",
            ["fails test_the_model_stays_as_it_was, none of timeout, which the first line of the file declares"],
        ),
    ],
)
def test_on_another_release_one_named_check_is_enough(lab, problems, monkeypatch, names, told):
    """Elsewhere than on the pinned release and a CPU figures may differ; a variant must still fail by what it names."""
    monkeypatch.setattr(verify, "PINNED", "0.0.0")
    declare(lab, names)
    found = [problem for problem in problems() if "is failed by no wrong variant" not in problem]
    assert len(found) == len(told)
    assert all(what in problem for what, problem in zip(told, found, strict=True))


def test_on_another_release_a_wrong_variant_must_not_pass(lab, problems, monkeypatch):
    monkeypatch.setattr(verify, "PINNED", "0.0.0")
    repair(lab)
    (told,) = problems()
    assert f"{WRONG}, seed 1: passes; it must fail" in told


def test_a_check_that_no_variant_fails(lab, pristine, problems):
    """Nobody knows whether such a check can fail at all."""
    shutil.copy(variant(pristine, "wrong/sigmoid.py"), variant(lab, WRONG))
    (told,) = problems()
    assert told.startswith(
        f"tests/labs/{lab.folder}/test_checks.py::test_the_model_stays_as_it_was: is failed by no wrong"
    )
    assert told.endswith("write one, or drop the check")


def test_a_check_that_records_no_figure(lab, problems):
    """A verdict without figures convinces nobody."""
    text = lab.checks_path.read_text("utf-8")
    body = text.index("    for regime", text.index("def test_the_model_stays_as_it_was"))
    bare = '    assert all(evidence[f"{regime}.still_training"] for regime in lab.measurement.SCALES)\n'
    lab.checks_path.write_text(text[:body] + bare, "utf-8")
    (told,) = problems()
    assert told.endswith("::test_the_model_stays_as_it_was: records no figure; assert with at_most, at_least or equal")


def test_a_check_that_breaks_on_its_own_account(lab, problems):
    """Then no verdict rests on it: every file is told to be in error, the right ones first."""
    replace(lab.checks_path, 'evidence["has_graph"]', 'evidence["graph"]')
    found = problems()
    assert f"solutions/{lab.folder}/train.py, seed 1: must pass and is error" in found[1]
    assert "a check of lab90 is at fault, not the file it judges" in found[1]


def test_a_budget_that_does_not_suffice(lab, problems):
    """Time and memory of every fix must be within what lab.toml allows."""
    replace(lab.path / "lab.toml", "cpu_seconds = 5 ", "cpu_seconds = 1 ")
    replace(lab.path / "lab.toml", "memory_mib = 2048", "memory_mib = 700")
    first = "    training = model.training\n"
    replace(lab.solution, first, "    while True: pass\n" + first)
    replace(
        variant(lab, "right/log_softmax.py"), first, "    kept = [torch.ones(1 << 20) for _ in range(512)]\n" + first
    )
    slow, big = problems()
    assert f"solutions/{lab.folder}/train.py, seed 1: must pass and is timeout; correct it" in slow
    assert "right/log_softmax.py, seed 1: must pass and is out of memory; correct it" in big
    assert "allowed: 1 CPU seconds, 15 s, 700 MiB" in slow


def test_every_seed_is_judged(report, judging):
    """More seeds, more verdicts."""
    verdicts = report(seeds=(1, 2)).verdicts
    assert [(role, v.seed) for role, v in verdicts[:4]] == [
        ("starter", 1),
        ("starter", 2),
        ("solution", 1),
        ("solution", 2),
    ]
    assert len(verdicts) == 8


# ------------------------------------------------------------------------------------------- evidence and lab.toml


def test_evidence_that_lab_toml_names(lab, problems):
    """What a figure draws must be there on both sides; predictions must have an answer in the starter's evidence."""
    toml = lab.path / "lab.toml"
    replace(toml, 'series = ["highest"]', 'series = ["lowest"]\nbound = "limit"')
    asked = ("alone", "highest", "has_graph", "alone.highest")
    more = [f'[[predict]]\nquestion = "?"\nchoices = ["1", "2"]\nevidence = "{key}"\n' for key in asked]
    toml.write_text(toml.read_text("utf-8") + "".join(more), "utf-8")
    where = f"labs/{lab.folder}/lab.toml: "
    missing = "names evidence {!r}, which the {} does not produce; correct it, or measure.py"
    no_choice = "[[predict]] {}: no choice is what the evidence {!r} says; add it, or name another key"
    expected = [
        *(where + missing.format(key, "starter") for key in ("alone", "limit", "lowest")),
        where + no_choice.format(3, "highest"),  # an array
        where + no_choice.format(4, "has_graph"),  # neither yes nor no
        *(where + missing.format(key, "solution") for key in ("limit", "lowest")),
    ]
    assert problems() == expected
    assert problems() == expected  # the cache does not hide it


# ----------------------------------------------------------------------------------------------------- the commands


def command(lab: Lab, line: str) -> None:
    replace(lab.path / "README.md", CHEAP, f"$ {line}")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("python nowhere.py", "`python nowhere.py` with the starter exits with 2; correct it or the starter: "),
        ("no-such-program", "`no-such-program` with the starter exits with 127"),
        ("python -c 'pass'", "with the starter exits with 0; correct it or the starter: no output"),
        ("python 'train.py", "exits with 127; correct it or the starter: No closing quotation"),
    ],
)
def test_a_command_that_fails(lab, problems, line, told):
    """It is told with its end: the author has not run it."""
    command(lab, line)
    starter, solution = problems()
    assert starter.startswith(f"labs/{lab.folder}/README.md: ")
    assert told in starter
    assert "with the solution" in solution


def test_the_starter_may_show_its_symptom_by_failing(lab, problems):
    """Status 1 of the starter is a symptom; of the solution it is a fault."""
    command(lab, "python -c \"print('loss nan'); exit(1)\"")
    (told,) = problems()
    assert "with the solution exits with 1; correct it or the solution: loss nan" in told


def running() -> set[str]:
    """The last argument of every process."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.add(path.read_bytes().decode(errors="replace").rstrip("\0").rpartition("\0")[2])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_command_that_takes_too_long(lab, problems, monkeypatch):
    """It ends with all that it started, which holds its output open."""
    monkeypatch.setattr(verify, "COMMAND_SECONDS", 1)
    mark = f"4{os.getpid()}"
    command(lab, f"python -c \"import subprocess; print(1); subprocess.run(['sleep', '{mark}'])\"")
    starter, _ = problems()
    assert "with the starter takes longer than 1 s; correct it" in starter
    deadline = time.monotonic() + 20
    while mark in running() and time.monotonic() < deadline:  # a kill takes a moment
        time.sleep(0.05)
    assert mark not in running()


def test_a_command_runs_beside_the_file_with_this_interpreter(lab, problems):
    """`python` and `breakfix` are those that verify, and nothing is asked from standard input."""
    command(
        lab, "python -c \"import breakfix, sys; print(open('train.py').read()[:9], sys.stdin.read() == '' or exit(3))\""
    )
    assert problems() == []


# ------------------------------------------------------------------------------------------------- what needs a GPU


def test_variants_for_cuda_are_left_out_on_a_cpu(lab, report):
    """What means something on CUDA alone is neither judged nor missed on a CPU."""
    head = "# wrong: test_equals_float64\n# Right on a CPU.\n# needs: cuda\n"
    variant(lab, "wrong/on_cuda.py").write_text(head + lab.solution.read_text("utf-8"), "utf-8")
    found = report()
    assert found.problems == []
    assert "wrong/on_cuda.py" not in [role for role, _ in found.verdicts]
    assert "wrong/on_cuda.py" in [case.role for case in cases_of(lab, "cuda")]


def test_a_lab_that_cannot_run_here_does_not_hold(lab, report, judging, monkeypatch):
    """Skipped is not passed: it says what is lacking, and judges nothing."""
    monkeypatch.setattr(judge, "_has_cuda", lambda: False)
    replace(lab.path / "lab.toml", "needs = []", 'needs = ["cuda"]')
    found = report()
    assert found.problems == []
    assert not found.holds
    assert "needs a CUDA device" in found.lacks
    assert judging.names == []


def test_what_is_wrong_with_the_files_comes_first(lab, report, judging):
    """Nothing is judged before the files are in order; parts to fill in stop nothing."""
    replace(lab.checks_path, "points=5", "points=6")
    assert len(report().problems) == 1
    assert judging.names == []


# --------------------------------------------------------------------------------------------------------- the cache


EVERY_FILE = ["right/log_softmax.py", "train.py", "train.py", "wrong/left_in_eval.py"]  # train.py: starter and solution


def test_nothing_is_judged_twice(lab, report, judging):
    """The second time only what has changed: a variant, or everything when the asking side has."""
    first = report()
    judging.names.clear()
    (lab.path / "README.md").open("a").write("\n")  # prose changes no verdict
    assert report().verdicts == first.verdicts
    assert judging.names == []
    variant(lab, WRONG).open("a").write("\n")
    assert report().holds
    assert judging.names == [WRONG]


@pytest.mark.parametrize("path", ["tests/labs/@/test_checks.py", "labs/@/numbers.txt"])
def test_what_the_asking_side_reads_counts(lab, report, judging, path):
    """The checks, the measurement and whatever lies beside it: a change of that asks for every verdict anew."""
    report()
    judging.names.clear()
    (lab.root / path.replace("@", lab.folder)).open("a").write("\n")
    assert report().holds
    assert sorted(judging.names) == EVERY_FILE


def test_fresh_judges_again_and_keeps_that(report, judging, tmp_path):
    cache = VerdictCache(tmp_path)
    report(cache=cache, fresh=True)
    assert sorted(judging.names) == EVERY_FILE
    report(cache=cache)
    assert sorted(judging.names) == EVERY_FILE


def test_a_spoilt_cache_is_no_obstacle(lab, report, judging, cache):
    """Whatever is wrong with a kept verdict, the file is judged again."""
    report()
    judging.names.clear()
    spoilt = ["", "[]", "null", '{"checks": 3}']
    for case, content in zip(cases_of(lab), spoilt, strict=True):
        (cache.folder / f"{cache.key(Job.of_file(lab, case.path, 1))}.json").write_text(content, "utf-8")
    assert report().holds
    assert sorted(judging.names) == EVERY_FILE


# -------------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def breakfix(judging, monkeypatch, user_cache):
    """Run the command line in this process, with the engine that is warm: (exit code, what it printed)."""
    monkeypatch.setattr(author, "Engine", lambda: nullcontext(judging))
    monkeypatch.setenv("XDG_CACHE_HOME", str(user_cache))

    def run(*arguments) -> tuple[int, str]:
        result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "1000"})
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return run


def test_verify_says_that_a_lab_holds(lab, breakfix):
    """Exit code 0, one line, and what judging cost."""
    code, printed = breakfix("verify", "--root", lab.root)
    assert code == 0
    assert re.match(r"✓ holds  lab90: 4 verdicts; at most [\d.]+ CPU s, \d+ MiB\n$", printed)


def test_verify_says_what_does_not_hold(lab, breakfix):
    """Exit code 1, and one line per problem, never wrapped: the file first."""
    shutil.copy(lab.starter, lab.solution)
    code, printed = breakfix("verify", "90", "--root", lab.root)
    assert code == 1
    first, second = printed.splitlines()
    assert first.startswith("✗ does not hold  lab90: 4 verdicts")
    assert second.startswith(f"    solutions/{lab.folder}/train.py, seed 1: must pass and is failed")


def test_verify_as_json(lab, breakfix):
    """Every verdict with its figures, and the problems: nothing else on standard output."""
    shutil.copy(lab.starter, lab.solution)
    code, printed = breakfix("verify", "--root", lab.root, "--json")
    assert code == 1
    (told,) = json.loads(printed)
    assert (told["lab"], told["holds"], told["lacks"], len(told["problems"])) == ("lab90", False, "", 1)
    states = {verdict["file"]: verdict["state"] for verdict in told["verdicts"]}
    assert states == {
        "starter": "failed",
        "solution": "failed",
        "right/log_softmax.py": "passed",
        "wrong/left_in_eval.py": "failed",
    }
    assert all(check["figures"] for verdict in told["verdicts"] for check in verdict["checks"])


def test_verify_of_a_lab_that_cannot_be_read(lab, breakfix):
    """It is told among the others, which are verified all the same."""
    new_lab("loss_jumps", lab.root, number=91)
    (lab.root / "labs" / "lab91_loss_jumps" / "lab.toml").write_text("title = 3", "utf-8")
    code, printed = breakfix("verify", "--root", lab.root, "--json")
    good, bad = json.loads(printed)
    assert code == 1
    assert (good["lab"], good["holds"]) == ("lab90", True)
    assert (bad["lab"], bad["holds"], bad["verdicts"]) == ("lab91_loss_jumps", False, [])
    assert "labs/lab91_loss_jumps/lab.toml: title is of type integer; make it string" in bad["problems"]
    code, printed = breakfix("verify", "lab91", "--root", lab.root)
    assert code == 1
    assert "lab.toml: title is of type integer" in printed


def test_verify_of_a_lab_that_cannot_run_here(lab, breakfix, monkeypatch):
    """Exit code 3: neither a success nor a fault of the lab."""
    monkeypatch.setattr(judge, "_has_cuda", lambda: False)
    replace(lab.path / "lab.toml", "needs = []", 'needs = ["cuda"]')
    code, printed = breakfix("verify", "--root", lab.root)
    assert code == 3
    assert re.search(r"^\? not verified here  lab90: 0 verdicts\n    lab90 on cpu needs a CUDA device", printed)
    assert json.loads(breakfix("verify", "--root", lab.root, "--json")[1])[0]["holds"] is False


def test_verify_again_and_fresh(lab, breakfix, judging):
    """What has not changed is judged once, unless it is asked for."""
    breakfix("verify", "--root", lab.root)
    judging.names.clear()
    breakfix("verify", "--root", lab.root)
    assert judging.names == []
    assert breakfix("verify", "--root", lab.root, "--fresh")[0] == 0
    assert sorted(judging.names) == EVERY_FILE


def test_verify_needs_something_to_verify(breakfix, tmp_path):
    """A mistyped root is a mistake of usage, never a success."""
    (tmp_path / "empty" / "labs").mkdir(parents=True)
    for root, told in (
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path, "has no labs/ folder"),
        (tmp_path / "empty", "there is no lab in"),
    ):
        code, printed = breakfix("verify", "--root", root)
        assert code == 2
        assert told in printed


def test_verify_of_an_unknown_lab(pristine):
    """Exit code 2, and which labs there are."""
    command = [sys.executable, "-m", "breakfix", "verify", "lab77", "--root", str(pristine.root)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "1000"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no lab 'lab77'; there are lab90" in done.stderr


# ----------------------------------------------------------------------------------------------------- breakfix new


def test_a_new_lab_fails_by_its_parts_to_fill_in_only(breakfix, tmp_path):
    """Everything runs end to end at once, the README's own command too."""
    code, printed = breakfix("new", "loss_jumps", "--root", tmp_path, "--number", 92, "--json")
    made = json.loads(printed)
    files = sorted(map(Path, made["files"]))
    assert code == 0
    assert (made["lab"], made["root"]) == ("lab92", str(tmp_path))
    assert files == sorted(p for p in tmp_path.rglob("*") if p.is_file())
    assert len(made["to_fill_in"]) == sum(path.read_text("utf-8").count("TODO") for path in files)
    code, printed = breakfix("verify", "--root", tmp_path, "--json")
    (told,) = json.loads(printed)
    assert code == 1
    assert len(told["verdicts"]) == 10
    assert told["problems"] == made["to_fill_in"]


def test_a_new_lab_of_a_script_measures_nothing_yet(lab, breakfix, tmp_path):
    """It runs, and says of the solution and of the right variants that they do not pass: no check is met by nan."""
    breakfix("new", "loss_jumps", "--root", tmp_path, "--number", 92, "--from", lab.starter)
    made = read_lab(tmp_path / "labs" / "lab92_loss_jumps")
    for each in made.variants:
        each.path.unlink() if each.path.name != "first.py" else None
    replace(made.path / "README.md", "$ python train.py", CHEAP)
    code, printed = breakfix("verify", "--root", tmp_path, "--json")
    (told,) = json.loads(printed)
    assert code == 1
    found = [problem for problem in told["problems"] if " to fill in: " not in problem]
    assert [problem.partition(", seed 1: must pass and is failed")[0] for problem in found] == [
        f"solutions/{made.folder}/train.py",
        f"tests/labs/{made.folder}/right/first.py",
    ]
    assert all("symptom: nan, at most 0" in problem for problem in found)


def test_new_says_what_to_do_next(breakfix, tmp_path, monkeypatch):
    """Where the files are, how many parts are to be filled in, and how the other commands find them."""
    code, printed = breakfix("new", "loss_jumps", "--root", tmp_path, "--number", 92)
    assert code == 0
    assert str(tmp_path / "solutions" / "lab92_loss_jumps") in printed
    assert re.search(r"\d+ parts to fill in, each marked TODO", printed)
    assert f"next: breakfix verify lab92 --root {tmp_path}" in printed
    assert f"BREAKFIX_ROOTS={tmp_path}" in printed
    monkeypatch.setenv("BREAKFIX_ROOTS", str(tmp_path))
    printed = breakfix("new", "loss_falls", "--root", tmp_path, "--number", 93)[1]
    assert "next: breakfix verify lab93\n" in printed
    assert "BREAKFIX_ROOTS" not in printed


def test_new_refuses_in_one_sentence(breakfix, tmp_path):
    """Exit code 2, nothing on standard output, nothing written."""
    code, printed = breakfix("new", "Loss", "--root", tmp_path, "--json")
    assert code == 2
    assert "write what a person sees" in printed
    assert not list(tmp_path.iterdir())
