# starter: test_running_and_stopped test_recordings_of_any_length test_notes_are_read test_served_equals_the_model
"""The deployed programs mean what the model means: whatever the pump does, however long it was recorded, note or not."""

import math
import operator

import numpy as np

from breakfix.checks import at_most, check, equal

TURNING = 0.5
_OFF_THE_EXAMPLE = {"shorter": operator.lt, "longer": operator.gt}


def reference(weights, recording, running=None, note=True):
    """The scores in float64, in NumPy; by the head for a `running` pump or a stopped one, where that is given."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    readings = recording.readings.astype(np.float64)
    summary = np.tanh(readings @ w["encode.weight"].T + w["encode.bias"]).mean(axis=0)
    if note and recording.text is not None:
        summary = summary + w["words.weight"][recording.text].mean(axis=0)
    speed = readings[:, 0].mean()
    if not (speed > TURNING if running is None else running):
        return w["heads.0.weight"] @ summary + w["heads.0.bias"]
    with np.errstate(divide="ignore", invalid="ignore"):
        hidden = np.tanh(w["heads.1.0.weight"] @ (summary / speed) + w["heads.1.0.bias"])
    return w["heads.1.2.weight"] @ hidden + w["heads.1.2.bias"]


def worst(lab, got, wanted):
    """The largest error over {name: reference or several, of which the nearest counts}; a missing answer is inf."""
    errors = [0.0]
    for name, candidates in wanted.items():
        found = [lab.measurement.apart(got.get(name), want.astype(np.float32)) for want in candidates]
        errors.append(min((error for error in found if not math.isnan(error)), default=math.inf))
    return max(errors)


def served(evidence):
    return {key.removeprefix("served."): value for key, value in evidence.items() if key.startswith("served.")}


def by_either_head(weights, recording):
    """What each of the two heads says: which one it should be is another check's matter."""
    return [reference(weights, recording, running) for running in (True, False)]


@check(points=3)
def test_running_and_stopped(evidence, inputs, lab, device):
    """Running and stopped pumps are each answered by their own head, at the length that the example has."""
    for running in (True, False):
        chosen = {
            name: [reference(inputs.weights, r)]
            for name, r in inputs.requests.items()
            if r.running is running and r.text is None and r.length == lab.measurement.EXAMPLE
        }
        what = f"error of the scores, {len(chosen)} {'running' if running else 'stopped'} pumps"
        at_most(what, worst(lab, served(evidence), chosen), _bound(lab, device))


@check(points=2)
def test_recordings_of_any_length(evidence, inputs, lab, device):
    """One reading, two, or three hundred: a recording is weighed by its own length, not by the example's."""
    for what, belongs in _OFF_THE_EXAMPLE.items():
        chosen = {
            name: by_either_head(inputs.weights, r)
            for name, r in inputs.requests.items()
            if r.text is None and belongs(r.length, lab.measurement.EXAMPLE)
        }
        error = worst(lab, served(evidence), chosen)
        at_most(f"error of the scores, recordings {what} than the example", error, _bound(lab, device))


@check(points=2)
def test_notes_are_read(evidence, inputs, lab, device):
    """A note counts in the answer where there is one, and one with an unknown word is refused, as in the model."""
    for what, noted in (("with a note", True), ("without a note", False)):
        chosen = {
            name: by_either_head(inputs.weights, r)
            for name, r in inputs.requests.items()
            if (r.text is not None) is noted and r.length == lab.measurement.EXAMPLE
        }
        at_most(f"error of the scores, {what}", worst(lab, served(evidence), chosen), _bound(lab, device))
    unknown = [name for name in inputs.bad if "word" in name]
    equal(f"refused, of {len(unknown)} with an unknown word", _refused(evidence, unknown), len(unknown))


@check(points=2)
def test_served_equals_the_model(evidence, inputs, lab, device):
    """Every recording: the programs answer as the model in PyTorch, and that means today what it meant before."""
    eager = {name: evidence[f"eager.{name}"] for name in inputs.requests}
    wanted = {name: [reference(inputs.weights, r)] for name, r in inputs.requests.items()}
    at_most("error of the model itself", worst(lab, eager, wanted), _bound(lab, device))
    apart = worst(lab, served(evidence), {name: [answer] for name, answer in eager.items()})
    at_most("programs against the model", apart, _bound(lab, device))
    unanswered = [name for name in evidence["refused"] if name in inputs.requests]
    at_most(f"recordings that raised, of {len(inputs.requests)}", len(unanswered), 0)


@check(points=1)
def test_faults_stay_loud(evidence, inputs):
    """A recording without its channels is refused, and a broken sensor shows as nan: no score is made up for it."""
    lacking = [name for name in inputs.bad if "word" not in name]
    equal(f"refused, of {len(lacking)} that lack something", _refused(evidence, lacking), len(lacking))
    answers = [evidence.get(f"served.{name}", np.zeros(1)) for name in inputs.broken]
    at_most("scores made up for a broken sensor", sum(int((~np.isnan(a)).sum()) for a in answers), 0)


def _refused(evidence, names):
    return sum(name in evidence["refused"] for name in names)


def _bound(lab, device):
    return lab.measurement.TOLERANCE[device.type]
