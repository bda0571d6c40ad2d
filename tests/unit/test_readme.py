"""What the project's README lists is what is there."""

import re
from pathlib import Path

import pytest

from breakfix.catalog import Catalog

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.skipif(not README.is_file(), reason="this is not a checkout")
def test_every_lab_is_listed_by_its_title():
    listed = re.findall(r"^\| (lab\d\d) \| (.+) \|$", README.read_text("utf-8"), re.M)
    assert listed == [(lab.id, lab.title) for lab in Catalog.read(README.parent)]
