"""Figures: whatever the kind, broken beside fixed, the same bytes each time, and nothing said by colour alone."""

import re
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need breakfix[site]")

from breakfix.render.figures import alternative, draw
from breakfix.render.plots import MOST_POINTS, _thin

NAN, INF = float("nan"), float("inf")
SVG = "{http://www.w3.org/2000/svg}"
LOSSES = np.array([3.0, NAN, 2.0, 1.5, INF, 1.0])
TIMELINE = np.array([[0, 1.0], [10, 4.0], [30, 2.0]])

EVIDENCE = {
    "curve": ({"a": LOSSES, "b": LOSSES / 2}, {"a": np.linspace(3, 1, 6), "b": np.linspace(2, 1, 6)}),
    "timeline": ({"a": TIMELINE, "b": TIMELINE * 2}, {"a": TIMELINE / 2, "b": TIMELINE}),
    "bars": ({"a": 4, "b": NAN}, {"a": 1.5, "b": 2}),
    "matrix": ({"a": np.array([[1.0, NAN], [0.5, 0.0]])}, {"a": np.zeros((2, 2))}),
}


def lab(kind, **more):
    series = ["a"] if kind == "matrix" else ["a", "b"]
    labels = ["loss", "norm"][: len(series)]
    spec = {"kind": kind, "title": "A title & more", "x": "step", "y": "value", "series": series, "labels": labels}
    return SimpleNamespace(id="lab99", figure=spec | more)


def texts(svg):
    return [t for node in ElementTree.fromstring(svg).iter(f"{SVG}text") if (t := "".join(node.itertext()))]


@pytest.mark.parametrize("kind", EVIDENCE)
def test_is_one_labelled_svg_with_real_text(kind):
    svg = draw(lab(kind), *EVIDENCE[kind])
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    assert "A title & more" in root.get("aria-label")
    assert {"broken", "fixed"} <= {text.partition(":")[0] for text in texts(svg)}
    assert "value" in texts(svg)


@pytest.mark.parametrize("kind", EVIDENCE)
def test_same_evidence_same_bytes(kind):
    assert draw(lab(kind), *EVIDENCE[kind]) == draw(lab(kind), *EVIDENCE[kind])


@pytest.mark.parametrize("kind", EVIDENCE)
def test_takes_the_colour_of_the_page(kind):
    svg = draw(lab(kind), *EVIDENCE[kind])
    assert "currentColor" in svg
    assert "#000000" not in svg
    assert "#ffffff" not in svg, "a white background would be a slab on a dark page"
    assert "<style" not in svg, "its rules would hold for the whole page"
    assert "<metadata" not in svg


def test_ids_differ_between_labs():
    other = lab("curve")
    other.id = "lab98"
    first, second = (
        set(re.findall(r'id="(m[0-9a-f]{10})"', draw(x, *EVIDENCE["curve"]))) for x in (lab("curve"), other)
    )
    assert first
    assert not first & second


def test_what_is_not_finite_shows_as_a_cross():
    broken, fixed = EVIDENCE["curve"]
    with_nan, without = draw(lab("curve"), broken, fixed), draw(lab("curve"), fixed, fixed)
    assert "broken: 4 of 12 values not finite" in texts(with_nan)
    assert "nan or inf" in texts(with_nan)
    assert "nan or inf" not in texts(without)
    assert with_nan.count("<use") > without.count("<use")


def test_nan_has_a_mark_in_bars_and_matrix():
    for kind in ("bars", "matrix"):
        assert "× nan" in texts(draw(lab(kind), *EVIDENCE[kind]))


def test_colour_is_not_the_only_sign():
    curve, bars = draw(lab("curve"), *EVIDENCE["curve"]), draw(lab("bars"), *EVIDENCE["bars"])
    assert "stroke-dasharray" in curve
    assert "<pattern" in bars


def test_a_bound_is_drawn_and_named():
    broken, fixed = EVIDENCE["timeline"]
    svg = draw(lab("timeline", bound="limit"), broken | {"limit": 3.0}, fixed | {"limit": 3.0})
    assert "bound" in texts(svg)


@pytest.mark.parametrize("kind", EVIDENCE)
def test_a_side_without_evidence_can_be_drawn(kind):
    svg = draw(lab(kind), {}, EVIDENCE[kind][1])
    assert "broken: not measured" in svg


@pytest.mark.parametrize("kind", ["curve", "timeline", "bars"])
def test_a_logarithmic_axis_survives_zeros(kind):
    zeros = {"a": 0, "b": 10} if kind == "bars" else {"a": 0 * TIMELINE, "b": TIMELINE}
    assert "fixed" in draw(lab(kind, log=True), zeros, EVIDENCE[kind][1])


def test_bars_of_one_array_take_a_label_each():
    spec = lab("bars", series=["a"], labels=["first", "second", "third"])
    found = texts(draw(spec, {"a": np.array([1, 2, 3])}, {"a": np.array([1, 1, 1])}))
    assert {"first", "second", "third"} <= set(found)


def test_the_alternative_text_gives_ranges():
    words = alternative(lab("curve").figure, dict(zip(("broken", "fixed"), EVIDENCE["curve"], strict=True)))
    assert "loss, broken: 1 to 3, 2 of 6 not finite" in words
    assert "norm, fixed: 1 to 2" in words


def test_thinning_keeps_extremes_and_what_is_not_finite():
    y = np.sin(np.arange(20_000) / 300)
    y[7_777], y[12_345] = 9.0, NAN
    x, kept = _thin(np.arange(len(y)), y)
    assert len(kept) <= MOST_POINTS + 5
    assert 7_777 in x
    assert 12_345 in x
    assert (np.diff(x) > 0).all()
    assert np.nanmin(kept) == np.nanmin(y)
