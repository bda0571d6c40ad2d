"""An assignment: what a file may say, what it says when it is wrong, and the seeds that follow from its key."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakfix.catalog import Catalog
from breakfix.grading.assignment import Assignment, BadAssignment

CATALOG = Catalog.read(Path(__file__).parents[1] / "fixtures" / "learner_root")
LAB = CATALOG["lab91"]
DUE = datetime(2026, 12, 14, 23, 59, tzinfo=UTC)


@pytest.fixture
def written(tmp_path):
    """Write a specification, and read it again."""

    def read(text: str) -> Assignment:
        path = tmp_path / "assignment.toml"
        path.write_text(text, "utf-8")
        return Assignment.read(path, CATALOG)

    return read


def test_what_is_written_is_what_is_read(written):
    made = Assignment.of([LAB, CATALOG["lab92"]], 'Week "3" \\ 第三周', DUE)
    assert written(made.to_toml(with_key=True)) == made


def test_students_get_no_key(written):
    made = Assignment.of([LAB], "Week 3")
    assert made.key
    assert made.key not in made.to_toml(with_key=False)
    assert written(made.to_toml(with_key=False)).key == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = ", "not TOML"),
        ("[points]\nlab91 = 10\n", "title is missing"),
        ('title = "a"', "[points] is missing"),
        ('title = "a"\n[points]\nlab55 = 10', "lab55"),
        ('title = "a"\n[points]\nlab91 = 1', "write a multiple"),
        ('title = "a"\n[points]\nlab91 = 10.0', "write a multiple"),
        ('title = "a"\n[points]\nlab91 = -10', "write a multiple"),
        ('title = "a"\ndue = 2026-12-14T23:59:00\n[points]\nlab91 = 10', "time zone"),
        ('title = "a"\ncolour = 1\n[points]\nlab91 = 10', "unknown key colour"),
        ('title = "a"\nkey = 5\n[points]\nlab91 = 10', "key must be a string"),
        ('title = "a"\n[points]\nlab91 = 10\n[late]\npercent_per_day = 200', "from 0 to 100"),
    ],
)
def test_a_wrong_file_is_refused_with_what_to_do(written, text, said):
    with pytest.raises(BadAssignment) as error:
        written(text)
    assert said in str(error.value)


@given(st.binary(), st.binary())
def test_a_file_has_one_seed_and_another_file_or_key_another(a, b):
    one, other = Assignment.of([LAB], "x"), Assignment.of([LAB], "x")
    assert one.seed(LAB, a) == one.seed(LAB, a)
    assert one.seed(LAB, a) != other.seed(LAB, a)
    assert (one.seed(LAB, a) == one.seed(LAB, b)) == (a == b)


@given(st.integers(-14_400, 14_400), st.integers(1, 60), st.integers(1, 7))
def test_a_late_policy_takes_by_the_day_and_never_below_nothing(minutes, percent, most):
    assignment = Assignment("x", {"lab91": 10}, "k", DUE, percent, most)
    kept = assignment.kept_percent(DUE + timedelta(minutes=minutes))
    assert 0 <= kept <= 100
    assert (kept == 100) == (minutes <= 0)
    if minutes > most * 24 * 60:
        assert kept == 0


def test_an_extension_counts_instead_of_the_due_date():
    assignment = Assignment("x", {"lab91": 10}, "k", DUE, 10, 3)
    handed_in = DUE + timedelta(hours=30)
    assert assignment.kept_percent(handed_in) == 80
    assert assignment.kept_percent(handed_in, DUE + timedelta(days=2)) == 100
