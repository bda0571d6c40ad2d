# starter: test_results_hold_nothing_but_themselves test_the_caller_is_left_alone test_tuning_moves_what_it_should
"""A result is as small as it looks, whoever serves it; the caller keeps its mode; and the service still learns."""

from types import SimpleNamespace

import pytest
import torch

from breakfix.checks import at_most, check, equal
from breakfix.probes.parity import relative_error

ANSWERS = {"cpu": 1e-5, "cuda": 2e-3}
UPDATES = {"cpu": 1e-4, "cuda": 5e-3}
LARGEST_RESULT = 2.0  # KiB per image: boxes, scores and labels are 0.3, in blocks 0.5; what they come from is over 80


@pytest.fixture(scope="module")
def reference(lab, inputs, device):
    """The reference's model with its secret weights, made anew at each call; images and corrections on the device."""
    measurement = lab.measurement

    def model():
        made = measurement.Detector().to(device)
        measurement.set_weights(made, {name: w.to(device) for name, w in inputs["weights"].items()})
        return made

    return SimpleNamespace(
        model=model,
        images={camera: batches.to(device) for camera, batches in inputs["images"].items()},
        corrections=measurement.Corrections(*(t.to(device) for t in inputs["corrections"])),
    )


@check(points=3)
def test_results_hold_nothing_but_themselves(evidence):
    """What is kept for the report holds its own bytes only, whether from one camera, from all at once or a stream."""
    at_most("memory grows by, per image", evidence["shift.grown_kib_per_image"], LARGEST_RESULT, "KiB")
    for way in ("detect", "all", "stream"):
        at_most(f"held per image, {way}", evidence[f"{way}.held_kib_per_image"], LARGEST_RESULT, "KiB")
        at_most(f"graph nodes that results lead to, {way}", evidence[f"{way}.nodes"], 0)
        at_most(f"graph nodes that any tensor leads to, {way}", evidence[f"{way}.nodes_anywhere"], 0)
        equal(f"results require a gradient, {way}", evidence[f"{way}.requires_grad"], False)


@check(points=2)
def test_the_caller_is_left_alone(evidence):
    """Whoever serves, the caller's own mode is what it was: in the middle of a stream, after it, after half of it."""
    equal("in the body of a loop over a stream", evidence["stream.body"], "gradients")
    for when in ("after_warm_up", "after_the_last", "after_half", "after_two_at_once"):
        equal(when.replace("_", " "), evidence[f"caller.{when}"], "gradients")
    equal("inside the caller's no_grad", evidence["caller.in_no_grad"], "no gradients")
    equal("inside the caller's inference_mode", evidence["caller.in_inference_mode"], "inference mode")


@check(points=3)
def test_tuning_moves_what_it_should(evidence, reference, lab, device):
    """Tuning moves the scale and the camera's calibration as it should, however the camera was first met."""
    for way, times in lab.measurement.TIMES.items():
        camera, model = evidence[f"tune.{way}.camera"], reference.model()
        arguments = model, reference.images[camera][0], camera, reference.corrections
        before = lab.measurement.tuned(model, camera)
        losses = [loss for _ in range(times) for loss in lab.measurement.reference_tune(*arguments)]
        wanted = (lab.measurement.tuned(model, camera) - before).numpy()
        equal(f"of scale and calibration have moved, {way}", evidence[f"tune.{way}.moved"], 2)
        error = relative_error(evidence[f"tune.{way}.change"], wanted)
        at_most(f"change error, {way}", error, UPDATES[device.type])
        at_most(f"loss error, {way}", relative_error(evidence[f"tune.{way}.losses"], losses), UPDATES[device.type])


@check(points=1)
def test_detections_equal_the_reference(evidence, reference, lab, device):
    """Boxes, scores and labels are what they should be; also after tuning, of the tuned camera and of another one."""
    cameras, warmed, new = lab.measurement.CAMERAS, lab.measurement.WARMED, lab.measurement.NEW
    model = reference.model()
    _compare(evidence, "detect", lab, model, reference, [(warmed, 0), (new, 0)], device)
    _compare(evidence, "all", lab, model, reference, [(camera, 0) for camera in cameras], device)
    _compare(evidence, "stream", lab, model, reference, [(new, i) for i in range(lab.measurement.BATCHES)], device)
    for way in lab.measurement.TIMES:
        camera, model = evidence[f"tune.{way}.camera"], reference.model()
        change = torch.from_numpy(evidence[f"tune.{way}.change"].copy()).to(device)
        with torch.no_grad():  # what the subject's tuning has made of them; whether it is right is the other check's
            model.scale += change[:4]
            model.calibrations[camera].weight += change[4:].view(5, 5)
        other = next(c for c in cameras if c != camera)
        _compare(evidence, f"tune.{way}", lab, model, reference, [(camera, 0), (other, 0)], device)


def _compare(evidence, way, lab, model, reference, batches, device):
    found = [lab.measurement.reference_detect(model, reference.images[camera][i], camera) for camera, i in batches]
    boxes, scores, labels = (torch.stack([each[k].cpu() for each in found]).numpy() for k in range(3))
    at_most(f"box error, {way}", relative_error(evidence[f"{way}.boxes"], boxes), ANSWERS[device.type])
    at_most(f"score error, {way}", relative_error(evidence[f"{way}.scores"], scores), ANSWERS[device.type])
    equal(f"labels, {way}", evidence[f"{way}.labels"], labels)


@check(points=1)
def test_it_serves_as_before(evidence):
    """A stream reads a batch when its detections are asked for; cameras are read at the same time."""
    at_most("batches that a stream has read ahead", evidence["stream.ahead"], 1)
    equal("cameras are read at the same time", evidence["all.at_the_same_time"], True)
