"""The table and the map of labs: what they show, what they leave out, and that the map is what lab.toml says."""

import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from breakfix.catalog import Catalog

ROOT = Path(__file__).parents[2]
if not find_spec("mkdocs"):
    pytest.skip("the site needs breakfix[site]", allow_module_level=True)
if not (ROOT / "hooks").is_dir():
    pytest.skip("the site's hooks are in a checkout only", allow_module_level=True)

sys.path.insert(0, str(ROOT / "hooks"))
import catalogue  # noqa: E402
import track_map  # noqa: E402

sys.path.pop(0)

LABS = catalogue.complete_labs(ROOT)
SVG = "{http://www.w3.org/2000/svg}"


@dataclass
class Stub:
    """As much of a lab as a map needs."""

    id: str
    track: str = "memory"
    prerequisites: tuple[str, ...] = ()
    title: str = "It is & stays <wrong>"
    needs: tuple[str, ...] = field(default=())


def drawn(*labs: Stub) -> ET.Element:
    return ET.fromstring(track_map.draw(list(labs)))


def boxes(svg: ET.Element) -> dict[str, tuple[float, float]]:
    links = svg.findall(f"{SVG}a")
    return {a.get("data-lab"): (float(a[1].get("x")), float(a[1].get("y"))) for a in links}


def arrows(svg: ET.Element) -> list[ET.Element]:
    return [path for path in svg.findall(f"{SVG}path") if path.get("class") == "arrow"]


def test_what_builds_on_a_lab_stands_to_its_right():
    svg = drawn(Stub("lab01"), Stub("lab02", prerequisites=("lab00", "lab01")), Stub("lab03", "data", ("lab02",)))
    place = boxes(svg)
    assert place["lab01"][0] < place["lab02"][0] < place["lab03"][0]
    assert place["lab01"][1] == place["lab02"][1] < place["lab03"][1]  # a lane of its own
    assert len(arrows(svg)) == 2  # none from lab00
    assert "lab02 after lab01" in svg.get("aria-label")


def test_no_two_boxes_overlap():
    places = sorted(boxes(ET.fromstring(track_map.draw(LABS))).values())
    assert len(places) == len(LABS) - 1
    for (x, y), (to_x, to_y) in pairwise(places):
        assert x != to_x or to_y - y >= track_map.HEIGHT


def test_arrows_are_the_prerequisites():
    svg, known = ET.fromstring(track_map.draw(LABS)), {lab.id for lab in LABS} - {"lab00"}
    wanted = [(before, lab.id) for lab in LABS for before in lab.prerequisites if before in known]
    assert len(arrows(svg)) == len(wanted) > 10


def test_labs_that_wait_for_each_other_are_drawn_all_the_same():
    svg = drawn(Stub("lab01", prerequisites=("lab02",)), Stub("lab02", prerequisites=("lab01",)), Stub("lab03"))
    assert len(boxes(svg)) == 3


def test_titles_are_text_and_long_ones_end():
    svg = drawn(Stub("lab01", title="A & B < C " * 12))
    lines = [t.text for t in svg.iter(f"{SVG}tspan") if t.text][1:]
    assert len(lines) == 2
    assert lines[1].endswith("…")


def test_a_map_of_nothing():
    assert boxes(drawn()) == {}


def test_needs_are_words():
    needs = ("cuda", "ranks:2", "fork", "onnx", "serve", "quantize")
    words = catalogue.needs(Stub("lab01", needs=needs))
    assert words == "a CUDA GPU, 2 processes, Linux, the onnx extra, the serve extra, the quantize extra"
    assert catalogue.needs(Stub("lab01")) == "a CPU is enough"


def test_the_page_shows_what_a_lab_looks_like_and_nothing_of_why():
    text = catalogue.page(LABS)
    rows = [line for line in text.splitlines() if re.match(r"\| lab\d\d \|", line)]
    assert [row.split(" | ")[0] for row in rows] == [f"| {lab.id}" for lab in LABS]
    without = text
    for lab in LABS:
        for known in (lab.title, lab.title.replace("|", "\\|")):
            without = without.replace(known, "")
        for hint in lab.hints:
            assert hint not in text
    for giveaway in ("foreach", "checkpoint(", "zero_grad", "no_grad", "unscale_", "record_stream", "no_sync"):
        assert giveaway not in without


def test_its_filters_name_columns_that_are_there():
    text = catalogue.page(LABS)
    head = [cell.strip() for cell in re.search(r"^\| lab \|.*\|$", text, re.M)[0].strip("|").split("|")]
    for name, column, _ in (part.split(":") for part in re.search(r'data-filters="([^"]*)"', text)[1].split(",")):
        assert head[int(column)] == name


def test_every_lab_that_is_whole_is_in_it():
    assert {lab.id for lab in LABS} == {lab.id for lab in Catalog.read(ROOT) if not catalogue.missing(lab)}
