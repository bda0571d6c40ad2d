"""`symptom`: every lab is found by its own symptoms, whatever surrounds them, and nothing is found by chance."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakfix.catalog import Catalog
from breakfix.symptoms import find, tokens

LABS = Catalog.read()
TINY = Catalog.read(Path(__file__).parents[1] / "fixtures" / "learner_root")
OWN = [(lab, symptom) for lab in (*LABS, *TINY) for symptom in lab.symptoms]

TRACEBACK = """Traceback (most recent call last):
  File "/home/ann/trainer/run.py", line {line}, in main
  File "/usr/lib/python3.12/site-packages/torch/nn/modules/module.py", line {line}, in _call_impl
{message} (at 0x7f3a{line}c0 in /home/ann/trainer/run.py:{line})
"""


def names(text, catalog=LABS):
    return [match.lab.id for match in find(text, catalog)]


@pytest.mark.parametrize(("lab", "symptom"), OWN, ids=[f"{lab.id}-{i}" for i, (lab, _) in enumerate(OWN)])
def test_a_labs_own_symptoms_find_that_lab_first(lab, symptom):
    found = find(symptom, TINY if lab in TINY.labs else LABS)
    best = [match.lab.id for match in found if match.score == found[0].score]
    assert lab.id in best


@pytest.mark.parametrize(("lab", "symptom"), OWN, ids=[f"{lab.id}-{i}" for i, (lab, _) in enumerate(OWN)])
def test_frames_paths_lines_and_addresses_do_not_matter(lab, symptom):
    catalog = TINY if lab in TINY.labs else LABS
    asked = {names(TRACEBACK.format(message=symptom, line=line), catalog)[0] for line in (7, 1234)}
    assert asked == {names(symptom, catalog)[0]}


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
    ],
)
def test_the_same_complaint_in_other_clothes(noisy):
    assert names(noisy, TINY) == ["lab91"]


@pytest.mark.parametrize(
    ("text", "lab"),
    [
        ("nan", "lab08"),
        ("my loss suddenly becomes nan", "lab08"),
        ("RuntimeError: Function 'LogBackward0' returned nan values in its 0th output.", "lab08"),
        ("损失变成nan了", "lab08"),
        ("训练几步之后loss变成nan怎么办", "lab08"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity", "lab01"),
    ],
)
def test_what_people_write(text, lab):
    if not any(known.id == lab for known in LABS):
        pytest.fail(f"{lab} cannot be read at the moment: {LABS.bad}")
    assert names(text)[0] == lab


@pytest.mark.parametrize("text", ["总和差一", "发票的总和差一，为什么？"])
def test_chinese_has_no_blanks(text):
    assert names(text, TINY) == ["lab91"]


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "\n", "?!", "42", "0x7f3a", "the", "is it on", "hello", "how do I bake bread at home",
        "my cat sat on the mat", "what is the time", "/usr/lib/python3/dist-packages", "🙂", "你好",
        "the quick brown fox jumps over the lazy dog", "ImportError: No module named requests",
        "ValueError: invalid literal for int() with base 10: 'x'", "KeyError: 'name'", "Segmentation fault",
    ],
)  # fmt: skip
def test_what_fits_nothing_finds_nothing(text):
    assert names(text) == []


def test_no_labs_no_answer():
    assert find("loss is nan", Catalog(())) == []


def test_the_best_come_first_and_there_are_not_too_many():
    found = find(" ".join(s for lab in LABS for s in lab.symptoms), LABS, most=3)
    assert len(found) <= 3
    assert [m.score for m in found] == sorted((m.score for m in found), reverse=True)
    assert all(0.3 <= m.score <= 1 for m in found)


def test_words_of_a_name_count_as_the_name_and_by_themselves():
    assert set(tokens("torch.OutOfMemoryError")) == {"torch", "outofmemoryerror", "out", "memory"}
    assert tokens("grad_norm") == ["grad_norm"]
    assert tokens("显存溢出") == ["显存", "存溢", "溢出"]


@given(st.text())
def test_no_text_raises(text):
    for match in find(text, LABS):
        assert match.symptom in match.lab.symptoms


@given(st.text(alphabet=st.sampled_from("loss nan是损失 _.:/\\\"'0x(){}[]\n"), max_size=60))
def test_no_text_of_familiar_pieces_raises(text):
    assert all(0 < match.score <= 1 for match in find(text, LABS))
