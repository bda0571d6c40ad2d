"""`symptom`: real reports find their labs, whatever surrounds them, and what no lab is about finds none."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakfix.catalog import Catalog
from breakfix.symptoms import ELSEWHERE, Index, find, learn, texts_of, words

sys.path.insert(0, str(Path(__file__).parents[2] / "hooks"))
from symptom_figures import MARKS, MESSAGE, PAGE, held_out, rejected, tables

FIXTURES = Path(__file__).parents[1] / "fixtures"
SCRIPT = Path(__file__).parents[2] / "docs" / "assets" / "symptoms.js"
LABS = Catalog.read()
TINY = Catalog.read(FIXTURES / "learner_root")
OWN = [(lab, symptom) for lab in LABS for symptom in lab.symptoms]
REPORTS = [json.loads(line) for line in (FIXTURES / "reports.jsonl").read_text("utf-8").splitlines()]
REPORTS = [report for report in REPORTS if report["labs"]]
UNANSWERABLE = (FIXTURES / "unanswerable.txt").read_text("utf-8").splitlines()

TRACEBACK = """Traceback (most recent call last):
  File "/home/ann/trainer/run.py", line {line}, in main
    outputs = trainer.fit(model, loader, epochs=args.epochs)
  File "/usr/lib/python3.12/site-packages/torch/nn/modules/module.py", line {line}, in _call_impl
    return forward_call(*args, **kwargs)
{message} (at 0x7f3a{line}c0 in /home/ann/trainer/run.py:{line})
"""


def names(text, catalog=LABS):
    return [match.lab.id for match in find(text, catalog).matches]


def share(reports, first):
    """Of the reports the share whose lab is among the first so many."""
    return sum(not set(r["labs"]).isdisjoint(names(r["symptom"])[:first]) for r in reports) / len(reports)


# -------------------------------------------------------------------------------------------------------- real reports


@pytest.fixture(scope="module")
def asked():
    return list(held_out(LABS))


@pytest.mark.parametrize(("first", "wanted"), [(1, 0.75), (3, 0.92)])
def test_reports_find_their_lab_by_what_others_say(asked, first, wanted):
    """What the search is for: each report is asked of an index that has learnt from no text like it."""
    assert sum(a.among(first) for a in asked) >= wanted * len(asked)


def test_the_page_tells_the_figures_of_now(asked):
    told = PAGE.read_text("utf-8").partition(MARKS[0])[2].partition(MARKS[1])[0]
    assert told == tables(asked, rejected(LABS)), "run `python hooks/symptom_figures.py` and read what has changed"


def test_no_complaint_of_a_report_is_learnt_by_heart():
    """A message that PyTorch prints is the same for everybody, a complaint is not."""
    learnt = {text.lower() for _, text in texts()}
    same = [r["symptom"] for r in REPORTS if r["symptom"].lower() in learnt]
    assert [text for text in same if not MESSAGE.search(text) and len(text.split()) > 3] == []


def texts():
    return list(texts_of(LABS))


def test_chinese_is_understood_no_worse():
    chinese, english = ([r for r in REPORTS if (r["language"] == "en") == other] for other in (False, True))
    assert share(chinese, 3) >= share(english, 3) - 0.05


def test_reports_are_covered():
    assert sum(find(report["symptom"], LABS).covered for report in REPORTS) >= 0.95 * len(REPORTS)


def test_what_no_lab_is_about_is_said_to_be_so():
    """Texts that the search has not learnt from either."""
    assert not {text for label, text in texts() if label == ELSEWHERE} & set(UNANSWERABLE)
    assert sum(not find(text, LABS).covered for text in UNANSWERABLE) >= 0.7 * len(UNANSWERABLE)


# ------------------------------------------------------------------------------------------------------ a lab's own


def test_a_labs_own_symptoms_find_that_lab():
    """Nearly always first: a few symptoms belong to two labs."""
    found = [(lab.id, names(symptom), symptom) for lab, symptom in OWN]
    assert [f for f in found if f[0] not in f[1]] == []
    assert sum(lab == first[0] for lab, first, _ in found) >= 0.95 * len(found)


def test_frames_paths_lines_and_addresses_do_not_matter():
    for _, symptom in OWN[::7]:
        asked = {names(TRACEBACK.format(message=symptom, line=line))[0] for line in (7, 1234)}
        assert len(asked) == 1, symptom


def test_a_whole_traceback_is_answered_as_its_message_is():
    errors = [s for _, s in OWN if s.split(":")[0].endswith(("Error", "Exception", "Warning"))]
    kept = [names(s)[0] in names(TRACEBACK.format(message=s, line=7)) for s in errors]
    assert len(errors) > 50
    assert sum(kept) >= 0.95 * len(kept)


def test_every_lab_has_complaints_and_all_are_of_a_lab():
    count = {name: sum(label == name for label, _ in texts()) for name in (*(lab.path.name for lab in LABS), ELSEWHERE)}
    assert {name: n for name, n in count.items() if n < 10} == {}


@pytest.mark.parametrize(
    "noisy",
    [
        "the total is off by one",
        "THE TOTAL IS OFF BY ONE!!!",
        "  the   total\nis off\tby one  ",
        "ｔｈｅ ｔｏｔａｌ ｉｓ ｏｆｆ ｂｙ ｏｎｅ",  # full width, as some input methods write it
        "[2026-11-29 07:12:03] 0x7fff5 the total is off by one (rank 3, step 1042)",
        r"C:\Users\ann\sums.py:12: the total is off by one",
        "file:///srv/x/sums.py https://example.org/a/b?c=1 the total is off by one",
        "总和差一",
        "发票的总和差一，为什么？",
    ],
)
def test_the_same_complaint_in_other_clothes(noisy):
    answer = find(noisy, TINY)
    assert (answer.covered, answer.matches[0].lab.id) == (True, "lab91")


@pytest.mark.parametrize(
    ("text", "lab"),
    [
        ("nan", "lab08"),
        ("my loss suddenly becomes nan", "lab08"),
        ("RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.", "lab08"),
        ("损失变成nan了", "lab08"),
        ("训练几步之后loss变成nan怎么办", "lab08"),
        ("validation accuracy changes with batch size", "lab15"),
        ("optimizer.step(): CUDA out of memory, forward and backward are fine", "lab01"),
    ],
)
def test_what_people_write(text, lab):
    assert names(text)[0] == lab


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "\n", "?!", "42", "0x7f3a", "the", "is it on", "hello", "how do I bake bread at home",
        "my cat sat on the mat", "what is the time", "/usr/lib/python3/dist-packages", "🙂", "你好",
        "the quick brown fox jumps over the lazy dog", "ImportError: No module named requests",
        "ValueError: invalid literal for int() with base 10: 'x'", "KeyError: 'name'",
    ],
)  # fmt: skip
def test_what_fits_nothing_is_not_covered(text):
    assert not find(text, LABS).covered


def test_no_labs_no_answer():
    answer = find("loss is nan", Catalog(()))
    assert (answer.matches, answer.covered) == ((), False)


# -------------------------------------------------------------------------------------------------------- the answer


def test_the_best_come_first_with_the_reason():
    answer = find("validation accuracy depends on the batch size", LABS)
    assert [m.score for m in answer.matches] == sorted((m.score for m in answer.matches), reverse=True)
    assert len(answer.matches) == 3
    assert "batch" in answer.matches[0].words
    assert answer.matches[0].symptom in answer.matches[0].lab.symptoms


def test_a_labs_probe_is_one_that_there_is():
    probes = {match.probe for lab in LABS for match in find(lab.symptoms[0], LABS).matches} - {""}
    package = Path(__file__).parents[2] / "src"
    assert len(probes) > 5
    assert [probe for probe in probes if not (package / f"{probe.replace('.', '/')}.py").exists()] == []


def test_chinese_has_no_blanks():
    assert words("显存溢出 oom") == ["oom", "显存", "存溢", "溢出"]


def test_learning_twice_gives_the_same_and_it_is_small():
    few = tuple(sorted(texts())[::4])
    assert learn(few) == learn(few)
    assert len(json.dumps(Index.of(LABS).to_json(), ensure_ascii=False).encode()) < 300_000


def test_without_a_cache_it_learns_again(monkeypatch, tmp_path):
    """A cache that cannot be written, or holds something else, costs time only."""
    (tmp_path / "breakfix").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from breakfix import symptoms

    symptoms._kept.cache_clear()
    assert names("the total is off by one", TINY)[0] == "lab91"


@settings(deadline=None)  # the first to ask learns, in a second
@given(st.text())
def test_no_text_raises(text):
    for match in find(text, LABS).matches:
        assert match.symptom in match.lab.symptoms


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("loss nan是损失 _.:/\\\"'0x(){}[]\n"), max_size=60))
def test_no_text_of_familiar_pieces_raises(text):
    assert all(match.score < 3 for match in find(text, LABS).matches)


# ------------------------------------------------------------------------------------------------------- in a browser


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, to run the site's script")
def test_the_sites_search_answers_the_same(tmp_path):
    """The same labs in the same order, the same words and, to the ninth digit, the same scores."""
    asked = [r["symptom"] for r in REPORTS] + UNANSWERABLE
    asked += [TRACEBACK.format(message=s, line=3) for _, s in OWN[::9]] + [
        "",
        "🙂",
        "İstanbul loss\rnan\u2028x",
        "a" * 30_000,
    ]
    (tmp_path / "given.json").write_text(json.dumps({"index": Index.of(LABS).to_json(), "asked": asked}))
    program = (
        "const {find} = require(process.argv[1]), given = JSON.parse(require('fs').readFileSync(process.argv[2]));"
        "console.log(JSON.stringify(given.asked.map((text) => find(given.index, text))))"
    )
    done = subprocess.run(
        ["node", "-e", program, SCRIPT, tmp_path / "given.json"], capture_output=True, text=True, check=True
    )
    for text, theirs in zip(asked, json.loads(done.stdout), strict=True):
        ours = find(text, LABS)
        assert ours.covered == theirs["covered"], text
        assert [(m.lab.path.name, list(m.words)) for m in ours.matches] == [
            (m["name"], m["words"]) for m in theirs["matches"]
        ], text
        assert [m.score for m in ours.matches] == pytest.approx([m["score"] for m in theirs["matches"]], abs=1e-9)
