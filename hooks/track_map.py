"""The labs as a map: one lane per track, to the right of a lab what builds on it. SVG in the colour of the text."""

import html
import textwrap
from collections import defaultdict

from breakfix.catalog import TRACKS, Lab

WIDTH, HEIGHT = 210, 58  # of a box
GAP_X, GAP_Y, LANE, LEFT, TOP = 46, 14, 22, 96, 8
LETTERS = 28  # of a title in one line of its box
FIRST = "lab00"  # comes before all others, so its arrows would say nothing

Place = tuple[int, int]  # left and top of a box


def draw(labs: list[Lab]) -> str:
    """The map as one <svg> element. Every box is a link to its lab's page."""
    labs = [lab for lab in labs if lab.id != FIRST]
    lanes, places, bottom = _lay_out(labs)
    width = LEFT + (max(map(_column, places.values()), default=0) + 1) * (WIDTH + GAP_X)
    parts = [
        *(_lane(track, top, width) for track, top in lanes.items()),
        *(_arrow(places[before], places[lab.id]) for lab in labs for before in _before(lab, places)),
        *(_box(lab, places[lab.id]) for lab in labs),
    ]
    head = (
        f'<svg class="track-map" viewBox="0 0 {width} {bottom}" role="group" aria-label="{html.escape(words(labs))}" '
        'fill="none" stroke="currentColor" xmlns="http://www.w3.org/2000/svg">'
    )
    return "".join([head, MARKER, *parts, "</svg>"])


def words(labs: list[Lab]) -> str:
    """The map for who cannot see it: what comes before what."""
    known = {lab.id for lab in labs}
    told = [f"{lab.id} after {' and '.join(before)}" for lab in labs if (before := _before(lab, known))]
    return f"Which lab builds on which. {'; '.join(told)}. All others only need {FIRST}."


def depths(labs: list[Lab]) -> dict[str, int]:
    """How many labs stand before each, on the longest way."""
    by_id, found = {lab.id: lab for lab in labs}, {}

    def depth(name: str) -> int:
        if name not in found:
            found[name] = 0  # should two labs wait for each other, this ends it
            found[name] = max((depth(b) + 1 for b in _before(by_id[name], by_id)), default=0)
        return found[name]

    return {name: depth(name) for name in by_id}


def _lay_out(labs: list[Lab]) -> tuple[dict[str, int], dict[str, Place], int]:
    """The top of each lane, the place of each box, and where the map ends."""
    lanes, places, top, deep = {}, {}, TOP, depths(labs)
    for track in TRACKS:
        columns = defaultdict(list)
        for lab in (lab for lab in labs if lab.track == track):
            columns[deep[lab.id]].append(lab.id)
        if not columns:
            continue
        lanes[track] = top
        for column, names in columns.items():
            for row, name in enumerate(names):
                places[name] = (LEFT + column * (WIDTH + GAP_X), top + LANE // 2 + row * (HEIGHT + GAP_Y))
        top += max(map(len, columns.values())) * (HEIGHT + GAP_Y) - GAP_Y + LANE
    return lanes, places, top


def _column(place: Place) -> int:
    return (place[0] - LEFT) // (WIDTH + GAP_X)


def _before(lab: Lab, known) -> list[str]:
    return [name for name in lab.prerequisites if name in known]


# ----------------------------------------------------------------------------------------------------------- drawing

MARKER = (
    '<defs><marker id="track-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 8 4 0 8z" fill="currentColor" stroke="none"/></marker></defs>'
)


def _lane(track: str, top: int, width: int) -> str:
    line = f'<path class="lane" d="M0 {top}H{width}"/>' if top > TOP else ""
    return (
        f'{line}<text class="track" x="0" y="{top + LANE // 2 + 22}" fill="currentColor" stroke="none">{track}</text>'
    )


def _arrow(start: Place, end: Place) -> str:
    x, y, to_x, to_y = start[0] + WIDTH, start[1] + HEIGHT // 2, end[0], end[1] + HEIGHT // 2
    middle = to_x - GAP_X // 2
    return (
        f'<path class="arrow" marker-end="url(#track-arrow)" d="M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}"/>'
    )


def _box(lab: Lab, place: Place) -> str:
    x, y = place
    lines = textwrap.wrap(lab.title, LETTERS)
    lines = [*lines[:1], lines[1] + " …"] if len(lines) > 2 else lines
    rows = [f'<tspan x="{x + 10}" y="{y + 34 + 15 * i}">{html.escape(line)}</tspan>' for i, line in enumerate(lines)]
    return (
        f'<a href="{lab.id}/index.html" data-lab="{lab.id}"><title>{lab.id}: {html.escape(lab.title)}</title>'
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        f'<text fill="currentColor" stroke="none"><tspan class="id" x="{x + 10}" y="{y + 17}">{lab.id}</tspan>'
        f'<tspan class="mark" x="{x + WIDTH - 10}" y="{y + 17}" text-anchor="end"></tspan>{"".join(rows)}</text></a>'
    )
