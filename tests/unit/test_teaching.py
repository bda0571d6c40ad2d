"""The plans of the page for instructors can be taught: labs that exist, after those that they build on, in the time."""

import re
from pathlib import Path

import pytest

from breakfix.catalog import Catalog
from breakfix.cli import commands

PAGE = Path(__file__).parents[2] / "docs" / "teaching.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="this is not a checkout")
PLANS = ("A ten-week course", "Five days for a new colleague", "A workshop of one hour")
SPACE = {PLANS[0]: (10, 180), PLANS[1]: (5, 180), PLANS[2]: (5, 60)}  # rows, minutes of one


def rows(plan: str) -> list[tuple[list[str], int]]:
    """(labs, minutes) of each row of a plan's table."""
    section = PAGE.read_text("utf-8").split(f"\n## {plan}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if re.match(r"\| (\d|Day)", line)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = [next((re.findall(r"lab\d\d", c) for c in row[1:] if c.startswith("lab")), []) for row in cells]
    return [(labs, next(int(c) for c in row[1:] if c.isdecimal())) for labs, row in zip(found, cells, strict=True)]


@pytest.mark.parametrize("plan", PLANS)
def test_every_lab_comes_after_those_that_it_builds_on(plan):
    catalog, taught = Catalog.read(), []
    for lab in (lab for labs, _ in rows(plan) for lab in labs):
        assert set(catalog[lab].prerequisites) <= set(taught), f"{lab} comes too early"
        assert lab not in taught
        taught.append(lab)
    assert taught


@pytest.mark.parametrize("plan", PLANS)
def test_a_row_takes_as_long_as_its_labs(plan):
    catalog, table = Catalog.read(), rows(plan)
    assert len(table) == SPACE[plan][0]
    for labs, minutes in table:
        assert not labs or minutes == sum(catalog[lab].minutes for lab in labs), labs
        assert minutes <= SPACE[plan][1]


def test_a_workshop_of_one_hour_has_sixty_minutes():
    assert sum(minutes for _, minutes in rows(PLANS[2])) == 60


def test_every_lab_of_the_page_exists():
    own = {"lab90"}  # that the page has its reader write
    assert set(re.findall(r"lab\d\d", PAGE.read_text("utf-8"))) - own <= {lab.id for lab in Catalog.read()}


def test_every_command_of_the_page_exists():
    known = {command.name or command.callback.__name__ for command in commands().registered_commands}
    used = set(re.findall(r"^\$ breakfix (\w+)", PAGE.read_text("utf-8"), re.M))
    assert used >= {"assign", "grade", "export", "stats", "similar", "merge", "autograder", "new"}
    assert used <= known
