"""What else an instructor does with a class: ask who wrote alike, see where it fails, grade in parts, give feedback."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from breakfix import catalog, cli
from breakfix.evidence import encode
from breakfix.grading.gradebook import Gradebook
from breakfix.zygote import ENVIRONMENT, Engine

ROOT = Path(__file__).parents[1] / "fixtures" / "learner_root"
LAB = catalog.Catalog.read(ROOT)["lab91"]
RIGHT, BROKEN = LAB.solution.read_text("utf-8"), LAB.starter.read_text("utf-8")
SHORT_ONLY = RIGHT.replace("sum(values)", "sum(values if len(values) < 5 else values[1:])")
TRUST = "--i-trust-these-submissions"  # what is graded here is ours; tests/hostile has the others
LONGER = """

def check_lines(values, least=0.0):
    \"\"\"Lines that no invoice can have.\"\"\"
    odd = [i for i, value in enumerate(values) if value < least or value != value]
    if odd and len(odd) == len(values):
        raise ValueError(f"no line of {len(values)} is usable")
    return odd


def average(values, weights=None):
    weights = weights or [1.0] * len(values)
    weighted = sum(v * w for v, w in zip(values, weights, strict=True))
    return weighted / max(sum(weights), 1e-9)
"""
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def engine():
    """One warm engine for all."""
    with Engine() as engine:
        yield engine


class _Kept:
    """An engine that outlives its `with`."""

    def __init__(self, engine):
        self.engine = engine

    def __enter__(self):
        return self.engine

    def __exit__(self, *_):
        pass


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, engine):
    """An instructor's folder and home, and the tiny labs alone, with two wrong fixes on record."""
    root = tmp_path / "root"
    shutil.copytree(ROOT, root)
    wrong = root / "tests" / "labs" / LAB.folder / "wrong"
    wrong.mkdir()
    (wrong / "short_only.py").write_text(f"# wrong: test_long\n# it looks at <b>short</b> invoices\n{SHORT_ONLY}")
    (wrong / "no_totals.py").write_text(f"# wrong: test_one_total_per_line\n# it forgets\n{RIGHT}")
    monkeypatch.chdir(tmp_path)
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), catalog.ROOTS_VARIABLE: ""}
    for key, value in (home | ENVIRONMENT | {"COLUMNS": "200", "PYTHONSAFEPATH": "1"}).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(catalog, "own_root", lambda: root)
    monkeypatch.setattr("breakfix.cli.instructor.Engine", lambda: _Kept(engine))
    return tmp_path


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
def graded(breakfix):
    """Hand files in and grade them: the JSON."""
    assert breakfix("assign", "lab91", "-o", "bundle", "--title", f"Week 3 {HOSTILE}")[0] == 0

    def run(*options, **sources):
        for student, source in sources.items():
            hand_in(student, source)
        code, out = breakfix(
            "grade", "submissions", "--assignment", "bundle/assignment.toml", TRUST, "--json", *options
        )
        assert code == 0, out
        return json.loads(out)

    return run


def hand_in(student: str, source: str) -> None:
    path = Path("submissions", student, "lab91", LAB.editable)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, "utf-8")


def is_page(text: str) -> bool:
    """Whole, self-contained, and without anything that could run."""
    body = text[text.index("<body>") : text.rindex("</body>") + 7]
    for void in ("br", "meta"):
        body = re.sub(rf"<{void}([^>]*)>", rf"<{void}\1/>", body)
    ElementTree.fromstring(re.sub(r"class=n>", 'class="n">', body).replace("xlink:href", "href"))
    loads = re.findall(r'(?:src|href)="(?!#)([^"]*)"', text)
    return "<script" not in text and not loads and "prefers-color-scheme: dark" in text


# ------------------------------------------------------------------------------------------------------------- similar


def test_who_wrote_alike_is_asked_and_nobody_is_accused(graded, breakfix):
    copy = (RIGHT + LONGER).replace("values", "lines_of_it").replace("odd", "strange").replace("# ", "#  ")
    graded(ada=RIGHT + LONGER, bob=copy, cy=RIGHT, dora=RIGHT.replace("float(", "(float)("), emmy="x = (")
    for source in ("results", "submissions"):
        code, out = breakfix("similar", source, "--json")
        [told] = json.loads(out)
        assert (code, told["compared"]) == (0, 4)
        assert [(p["left"], p["right"]) for p in told["pairs"]] == [("ada", "bob")]
        assert "emmy" in told["notes"][0]
        assert "weighted / max(" in told["pairs"][0]["passages"][-1]["left"]
    code, said = breakfix("similar", "results", "--html", "alike.html", "--lab", "91")
    assert "how did they get there?" in said
    assert "lines_of_it" in said
    assert "weighted / max(" in said
    assert is_page(Path("alike.html").read_text("utf-8"))
    assert not re.search("copied|cheat|plagiar", said.lower())


def test_a_folder_without_a_lab_is_a_wrong_argument(breakfix):
    Path("empty").mkdir()
    code, said = breakfix("similar", "empty")
    assert code == 2
    assert "has no file of" in said


def test_what_a_student_wrote_cannot_move_the_cursor(breakfix):
    for student in ("ada", "bob"):
        hand_in(student, RIGHT + LONGER.replace("Lines that", "\x1b[2J\x1b]0;owned\x07Lines that"))
    code, said = breakfix("similar", "submissions")
    assert code == 0
    assert not re.search("[\x1b\x07]", said)


# --------------------------------------------------------------------------------------------------------------- stats


def test_failing_files_are_compared_with_known_mistakes(graded, breakfix):
    graded(ada=RIGHT, bob=BROKEN, cy=SHORT_ONLY, dora=SHORT_ONLY + "\n", emmy="def total(values):\n    return 5.0\n")
    code, out = breakfix("stats", "results", "--json")
    told = json.loads(out)["lab91"]
    assert code == 0
    assert told["like"] == {"short_only": 2, "the file as it was given": 2}
    assert told["students"]["cy"] == {
        "like": ["short_only"], "exactly": True, "reasons": ["it looks at <b>short</b> invoices"],
    }  # fmt: skip
    assert "ada" not in told["students"]
    assert "2 behave like short_only: cy, dora" in breakfix("stats", "results")[1]
    assert "It behaves like short_only." in breakfix("grade", "--explain", "cy", "lab91")[1]


def test_the_page_on_a_class_has_charts_and_names_nobody(graded, breakfix):
    graded(adalovelace=RIGHT, bobnoyce=BROKEN, cycoleman=SHORT_ONLY)
    assert breakfix("stats", "results", "--html", "class.html")[0] == 0
    text = Path("class.html").read_text("utf-8")
    assert is_page(text)
    assert text.count("<svg") == 3
    assert "it looks at &lt;b&gt;short&lt;/b&gt; invoices" in text
    assert not re.search("adalovelace|bobnoyce|cycoleman", text)
    assert "currentColor" in text


def test_charts_without_matplotlib_say_what_to_install(graded, breakfix, monkeypatch):
    graded(ada=RIGHT)

    def lacks(name):
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr("breakfix.cli.instructor.import_module", lacks)
    code, said = breakfix("stats", "results", "--html", "class.html")
    assert code == 3
    assert "breakfix[plots]" in said


# -------------------------------------------------------------------------------------------------------------- shards


def test_parts_joined_are_the_class_graded_at_once(graded, breakfix):
    sources = {f"s{i}": f"{(RIGHT, BROKEN, SHORT_ONLY)[i % 3]}\n# {i // 2}\n" for i in range(9)} | {"bad": "x = ("}
    whole = graded(**sources)
    for i in (1, 2, 3):
        graded("--shard", f"{i}/3", "-o", f"part{i}")
    code, out = breakfix("merge", "part1", "part2", "part3", "-o", "all", "--json")
    assert (code, json.loads(out)) == (0, {"grades": len(sources), "problems": [], "notes": []})
    for form in ("csv", "gradescope"):
        breakfix("export", "all", "--as", form)
        breakfix("export", "results", "--as", form)
    timeless = [re.sub(r"[^,]*\n", "\n", Path(d, "grades.csv").read_text()) for d in ("all", "results")]
    assert timeless[0] == timeless[1]
    for one in whole["grades"]:
        names = (Path(d, "gradescope", one["student"], "results.json").read_text() for d in ("all", "results"))
        assert len(set(names)) == 1
    assert graded("-o", "all")["graded"] == 0  # and it is a gradebook like any other


def test_parts_have_no_file_in_common_and_none_is_lost(graded):
    sources = {f"s{i}": f"{RIGHT}\n# {i}\n" for i in range(12)}
    seen = [
        row["student"] for i in (1, 2, 3, 4) for row in graded("--shard", f"{i}/4", "-o", f"p{i}", **sources)["grades"]
    ]
    assert sorted(seen) == sorted(sources)


def test_what_is_missing_is_named(graded, breakfix):
    graded("--shard", "1/3", "-o", "part1", **{f"s{i}": f"{RIGHT}\n# {i}\n" for i in range(6)})
    graded("--shard", "2/3", "-o", "part2")
    code, out = breakfix("merge", "part1", "part2", "-o", "all", "--json")
    problems = json.loads(out)["problems"]
    assert code == 1
    assert problems[0] == "missing of 3 parts: 3/3"
    assert "without a grade: s" in problems[1]
    code, said = breakfix("merge", "part1", "part2", "-o", "all")
    assert code == 2
    assert "not empty" in said


def test_overlap_is_said_and_a_contradiction_is_a_problem(graded, breakfix, monkeypatch):
    graded("--shard", "1/1", "-o", "one", ada=RIGHT, bob=BROKEN)
    graded("--shard", "1/1", "-o", "two")
    told = json.loads(breakfix("merge", "one", "two", "-o", "same", "--json")[1])
    assert told["problems"] == ["given twice: 1/1"]
    assert "with the same outcome: ada lab91, bob lab91" in told["notes"][0]
    with Gradebook(Path("two/gradebook.sqlite")) as book:
        grade = book.history("ada", "lab91")[0]
        book.record(replace(grade, state="failed", points=0, graded="2999-01-01T00:00:00+00:00"))
    code, out = breakfix("merge", "one", "two", "-o", "other", "--json")
    assert code == 1
    assert any("ada lab91 has contradicting grades" in p and "two: failed" in p for p in json.loads(out)["problems"])
    with Gradebook(Path("other/gradebook.sqlite")) as book:
        assert next(book.grades()).state == "failed"


def test_a_file_that_changes_between_parts_is_named(graded, breakfix):
    graded("--shard", "1/2", "-o", "part1", ada=RIGHT, bob=BROKEN)
    graded("--shard", "2/2", "-o", "part2", bob=RIGHT + "\n# late\n")
    code, out = breakfix("merge", "part1", "part2", "-o", "all", "--json")
    assert code == 1
    assert any("changed while the parts were graded: bob lab91" in p for p in json.loads(out)["problems"])


@pytest.mark.parametrize("part", ["0/3", "4/3", "1", "1/0", "a/b", "-1/2"])
def test_a_part_that_cannot_be_is_refused(graded, breakfix, part):
    hand_in("ada", RIGHT)
    code, said = breakfix("grade", "submissions", "--assignment", "bundle/assignment.toml", TRUST, "--shard", part)
    assert code == 2
    assert "1/8 to 8/8" in said


def test_every_part_wants_a_folder_of_its_own(graded, breakfix):
    graded("--shard", "1/2", ada=RIGHT)
    code, said = breakfix("grade", "submissions", "--assignment", "bundle/assignment.toml", TRUST, "--shard", "2/2")
    assert code == 2
    assert "holds part 1/2" in said


def test_parts_of_two_assignments_are_not_joined(graded, breakfix):
    graded("--shard", "1/1", "-o", "one", ada=RIGHT)
    breakfix("assign", "lab91", "-o", "other")
    breakfix("grade", "submissions", "--assignment", "other/assignment.toml", TRUST, "-o", "two")
    code, said = breakfix("merge", "one", "two", "-o", "all")
    assert code == 2
    assert "different assignments" in said


def test_parts_that_ran_with_other_versions_are_noted(graded, breakfix):
    graded("--shard", "1/2", "-o", "part1", **{f"s{i}": f"{RIGHT}\n# {i}\n" for i in range(4)})
    graded("--shard", "2/2", "-o", "part2")
    with Gradebook(Path("part2/gradebook.sqlite")) as book:
        grade = next(book.grades())
        book.record(grade, b"", replace(book.verdict(grade.key), versions={"torch": "1.0"}))
    code, out = breakfix("merge", "part1", "part2", "-o", "all", "--json")
    assert code == 0
    assert "graded with torch 1.0, " in json.loads(out)["notes"][0]


def test_a_damaged_listing_is_named(graded, breakfix):
    graded("--shard", "1/1", "-o", "part1", ada=RIGHT)
    Path("part1/shard.json").write_text("{")
    code, said = breakfix("merge", "part1", "-o", "all")
    assert code == 2
    assert "grade that part again" in said


def test_a_cluster_without_ray_says_what_to_install(graded, breakfix, monkeypatch):
    hand_in("ada", RIGHT)

    def lacks(name):
        raise ModuleNotFoundError("No module named 'ray'", name="ray")

    monkeypatch.setattr("breakfix.cli.instructor.import_module", lacks)
    code, said = breakfix(
        "grade", "submissions", "--assignment", "bundle/assignment.toml", TRUST, "--engine", "ray"
    )  # fmt: skip
    assert code == 3
    assert "breakfix[grade]" in said


# ------------------------------------------------------------------------------------------------------------ feedback


def test_a_students_page_has_figure_bound_and_why(graded, breakfix):
    plan = Path("bundle/assignment.toml")
    plan.write_text(plan.read_text("utf-8").replace("lab91 = 10", "lab91 = 20"), "utf-8")
    graded(ada=RIGHT, bob=BROKEN, cy="raise ValueError('<img src=x onerror=alert(1)>')")
    assert breakfix("export", "results", "--as", "feedback-html")[0] == 0
    pages = {path.stem: path.read_text("utf-8") for path in Path("results/feedback-html").glob("*.html")}
    assert set(pages) == {"ada", "bob", "cy"}
    assert all(map(is_page, pages.values()))
    assert "The total of a long invoice is the sum of its lines." in pages["bob"]
    assert "✗ out of bound" in pages["bob"]
    assert "4 of 20 points" in pages["bob"]
    assert re.findall(r'class="dim">([^<]*)', pages["bob"]) == ["0 of 8", "0 of 8", "4 of 4"]
    assert "≤ 0 EUR" in pages["bob"]
    assert ">yours<" in pages["bob"]
    assert ">repaired<" in pages["bob"]
    assert ">as it was given<" in pages["ada"]
    assert "<img" not in pages["cy"]
    assert "&lt;img" in pages["cy"]
    assert HOSTILE not in "".join(pages.values())


def test_hostile_names_and_evidence_spoil_no_page(graded, breakfix):
    graded(ada=RIGHT, bob=BROKEN)
    frame = encode({"long.totals": "<svg onload=alert(1)>", "short.total": HOSTILE})
    with Gradebook(Path("results/gradebook.sqlite")) as book:
        grade, verdict = book.history("bob", "lab91")[0], book.verdict(book.history("bob", "lab91")[0].key)
        check = replace(verdict.checks[0], message=HOSTILE, says=HOSTILE, figures=())
        for student in (f"../../{HOSTILE}", "a\u202eb\x1b[2J", "x" * 50):
            hostile = replace(verdict, checks=(check,), frame=frame, log=HOSTILE)
            book.record(replace(grade, student=student, key=student), b"", hostile)
    code, out = breakfix("export", "results", "--as", "feedback-html", "--json")
    assert code == 0
    written = [Path(path).resolve() for path in json.loads(out)]
    assert {path.parent for path in written} == {Path("results/feedback-html").resolve()}
    for path in written:
        text = path.read_text("utf-8")
        assert is_page(text)
        assert "<svg onload" not in text
        assert not re.search("[\u202e\x1b]", text)
