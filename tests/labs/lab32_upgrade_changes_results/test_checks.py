# starter: test_versions_are_compared_as_versions test_resize_is_the_approved_one test_no_version_changes_an_image test_rounding_is_no_change
"""A compatibility layer keeps answers as they were, and a regression test tells a change from rounding."""

import numpy as np
from packaging.version import Version

from breakfix.checks import at_most, check, equal
from breakfix.probes.parity import relative_error

NEAR = {"cpu": 1e-5, "cuda": 1e-4}  # float32 against float64; not run on a GPU


@check(points=2)
def test_versions_are_compared_as_versions(evidence, inputs):
    """2.10 is later than 2.9, a pre-release is earlier than its release, and a build's name changes nothing."""
    wanted = [Version(version) >= Version(least) for version, least in inputs.pairs]
    got = evidence["at_least"].tolist()
    wrong = [f"{v} at least {w}" for (v, w), a, b in zip(inputs.pairs, got, wanted, strict=True) if a != b]
    equal("pairs of versions on the wrong side", wrong, [])


@check(points=2)
def test_resize_is_the_approved_one(evidence, inputs, lab, device):
    """Whatever the version and the size: the values of the resize that the model was approved with."""
    for name, (_, _, size) in lab.measurement.SIZES.items():
        wanted = lab.measurement.approved(inputs.images[name].double(), size).numpy()
        worst = max(relative_error(images, wanted) for images in evidence[f"resize.{name}"])
        at_most(f"error of the images, {name}", worst, NEAR[device.type])


@check(points=1)
def test_no_version_changes_an_image(evidence, lab):
    """One torch, told that it is another: not a bit of an image may depend on that."""
    for name in lab.measurement.SIZES:
        images = evidence[f"resize.{name}"]
        at_most(f"largest difference between versions, {name}", float(np.abs(images - images[:1]).max()), 0.0)


@check(points=2)
def test_rounding_is_no_change(evidence, lab):
    """The same model passes with two threads, in another layout, batch or kernel: a red test that means nothing is ignored."""
    at_most("rounding, in shares of the answers' size", evidence["test.rounding"], lab.measurement.ROUNDING)
    equal("models that only round otherwise, reported as changed", evidence["test.alarms"], [])


@check(points=2)
def test_a_change_is_seen(evidence):
    """One answer off by a thousandth is enough, in whatever unit the model answers; so is another shape, or a nan."""
    equal("changed models that passed", evidence["test.missed"], [])


@check(points=1)
def test_the_record_is_data(evidence):
    """A record outlives the upgrade: a file of values that a plain torch.load reads, with no model and no code in it."""
    equal("records that could not be read again", evidence["test.refused"], [])
