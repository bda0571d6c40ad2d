# starter: test_each_block_gets_its_own_weights test_wrappers_leave_no_trace test_what_does_not_fit_is_refused test_exactly_the_named_are_frozen
"""A checkpoint's weights go to the blocks that they are of, or nowhere; and a name means one block."""

import torch

from breakfix.checks import at_most, check, equal
from breakfix.probes.parity import relative_error

TUNED = ("version 2, tuned",)  # before it was given version 1's weights, which leave the adapter alone
NEAR = {"cpu": 1e-4, "cuda": 1e-3}  # of answers, float32 against float64 through fifty blocks; not run on a GPU


def wanted(lab, inputs, case):
    """What each block is to have: the adapter of a model that got version 1's weights is as new, zero."""
    names, weights = lab.measurement.NAMES[1 if case.startswith("version 1,") else 2], dict(inputs.weights)
    if case not in TUNED and not case.startswith("version 2's own"):
        weights[lab.measurement.ADAPTER] = torch.zeros(lab.measurement.SIZE)
    return torch.stack([weights[name] for name in names])


def compare(evidence, lab, inputs, device, wrapped):
    """Each block's weights, and the answer that follows from them."""
    cases = (f"version 1, {wrapped}", f"version 2, {wrapped}", f"version 2's own, {wrapped}")
    for case in (*cases, *(TUNED if wrapped == "plain" else ())):
        weights = wanted(lab, inputs, case)
        equal(f"raised, {case}", evidence[f"{case}.raised"], "")
        wrong = (torch.tensor(evidence[f"{case}.weights"]) != weights).any(dim=1).sum()
        equal(f"blocks with weights that are not theirs, {case}", int(wrong), 0)
        answer = lab.measurement.answers(list(weights.double()), inputs.readings.double())[-1]
        at_most(f"error of the answer, {case}", relative_error(evidence[f"{case}.answer"], answer), NEAR[device.type])


@check(points=3)
def test_each_block_gets_its_own_weights(evidence, inputs, lab, device):
    """Whatever was put in between: a block has the weights that it was trained with, and the model answers as before."""
    compare(evidence, lab, inputs, device, "plain")


@check(points=2)
def test_wrappers_leave_no_trace(evidence, inputs, lab, device):
    """A model that was trained in DDP, compiled, or both, in either order, is the same model."""
    for wrapped in lab.measurement.PREFIXES:
        if wrapped != "plain":
            compare(evidence, lab, inputs, device, wrapped)


@check(points=2)
def test_what_does_not_fit_is_refused(evidence):
    """A weight missing, too many, or of another model raises, and leaves the model as it was: half a load is the worst."""
    equal("states that were taken", evidence["taken"], [])
    equal("states that moved a weight", evidence["moved"], [])


@check(points=2)
def test_exactly_the_named_are_frozen(evidence, inputs, lab):
    """The named blocks do not move in a step of training, and all others do; a name that is none raises."""
    for regime, names in inputs.frozen.items():
        still = sorted(set(names), key=lab.measurement.NAMES[2].index)
        equal(f"blocks that did not move, {regime}", evidence[f"frozen.{regime}"], still)
    equal("an unknown name raises", bool(evidence["frozen.unknown"]), True)


@check(points=1)
def test_a_name_finds_its_block(evidence, inputs, lab, device):
    """A hook on the block of a name sees what that block answers: fifty blocks in a row are no black box."""
    weights = [inputs.weights[name].double() for name in lab.measurement.NAMES[2]]
    answers = torch.stack(lab.measurement.answers(weights, inputs.readings.double()))
    at_most("error of what the hooks saw", relative_error(evidence["hooked"], answers), NEAR[device.type])
