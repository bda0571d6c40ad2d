# starter: test_the_batch_changes_nothing test_equals_float64
"""TODO: what the lab demands, in a sentence. A leaf has its own probabilities: a softmax over the species."""

import numpy as np

from breakfix.checks import at_most, check, equal
from breakfix.probes.parity import relative_error

# TODO: three kinds of check, 10 points in all: the symptom is gone, the cause is gone, nothing else broke.


def reference(inputs, scale):
    """The probabilities in float64."""
    logits = inputs["leaves"].double().numpy() @ inputs["weight"].double().numpy().T * scale
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@check(points=3)
def test_the_batch_changes_nothing(evidence, lab):
    """A leaf gets the same probabilities alone and beside others. TODO: the symptom is gone."""
    for regime in lab.measurement.SCALES:
        difference = np.abs(evidence[f"{regime}.together"] - evidence[f"{regime}.alone"]).max()
        at_most(f"difference alone and together, {regime}", float(difference), 1e-3)


@check(points=5)
def test_equals_float64(evidence, inputs, lab):
    """The probabilities equal a float64 softmax over the species. TODO: the cause is gone."""
    for regime, scale in lab.measurement.SCALES.items():
        error = relative_error(evidence[f"{regime}.together"], reference(inputs, scale))
        at_most(f"error, {regime}", error, 1e-3)


@check(points=2)
def test_the_model_stays_as_it_was(evidence, lab):
    """The model is still in training mode afterwards, and no graph is kept. TODO: nothing else broke."""
    for regime in lab.measurement.SCALES:
        equal(f"still in training mode, {regime}", evidence[f"{regime}.still_training"], True)
    equal("the answer has a graph", evidence["has_graph"], False)
