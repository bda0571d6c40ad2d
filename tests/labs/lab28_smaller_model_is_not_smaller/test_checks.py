# starter: test_the_file_is_small test_the_meters_open_it test_the_meters_answer_as_the_model test_dead_neurons_stay_at_home test_the_meters_read_digits
"""What arrives on the meters is smaller and does less work, and answers as the pruned model does."""

import numpy as np
import torch

from breakfix.checks import at_least, at_most, check, equal

TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # |got - want| / (1 + |want|): right ones reach 1e-5 on a CPU
LEAST_ACCURACY = 0.94
STILL_ALIVE = 0.6  # of the hidden weights, after pruning


def apart(got, want):
    """The largest |got - want| / (1 + |want|); inf where there is no answer."""
    if got.shape != want.shape:
        return float("inf")
    return float((np.abs(got - want) / (1 + np.abs(want))).max())


def names_of_today(lab):
    return sorted(lab.measurement.Reader(1, 1, 1).state_dict())


def files(lab):
    return ("pruned", *lab.measurement.KNOWN)


@check(points=2)
def test_the_file_is_small(evidence, lab):
    """The shipped file and the work per photo are within the budget: zeros cost as much as any other number."""
    budget = lab.measurement.BUDGET
    at_most("bytes of the file against today's", evidence["pruned.bytes"] / evidence["today.bytes"], budget)
    at_most("multiply-adds on the meter against today's", evidence["pruned.work"] / evidence["today.work"], budget)


@check(points=2)
def test_the_meters_open_it(evidence, lab):
    """The file has the names of today and nothing else, in dense float32, and loads strictly."""
    for key in files(lab):
        equal(f"refused by the meter, {key}", evidence[f"{key}.refused"], "no")
        odd = set(evidence[f"{key}.names"]) ^ set(names_of_today(lab))
        equal(f"names that are missing or new, {key}", len(odd), 0)


@check(points=3)
def test_the_meters_answer_as_the_model(evidence, inputs, lab, device):
    """Nothing that counts is left out: not the last step of training, not the bias of a neuron without weights."""
    bound = TOLERANCE[device.type]
    error = apart(evidence["pruned.logits"], evidence["pruned.answers"])
    at_most("error on the meter against the pruned model", error, bound)
    for kind in lab.measurement.KNOWN:
        want = reference(lab, inputs, kind)
        at_most(f"error on the meter, a model in which {kind}", apart(evidence[f"{kind}.logits"], want), bound)


def reference(lab, inputs, kind):
    """The logits of a known model in float64."""
    model = lab.measurement.Reader(*lab.measurement.WIDTHS).double()
    model.load_state_dict(inputs.known[kind])
    with torch.no_grad():
        return model(inputs.validation.tensors[0].double()).numpy()


@check(points=1)
def test_dead_neurons_stay_at_home(evidence, lab):
    """A neuron that nothing reaches or that nobody reads is not in the file, whichever way it came to that."""
    least = lab.measurement.work(lab.measurement.Reader(*lab.measurement.KEPT))
    for kind in ("nothing reaches", "nobody reads"):
        at_most(f"multiply-adds on the meter, a model in which {kind}", evidence[f"{kind}.work"], least)


@check(points=1)
def test_what_is_cut_stays_cut(evidence):
    """Pruning cuts a good part of the weights, and none of them comes back in training, early or late."""
    dense, pruned, early, late = (int(count) for count in evidence["alive"])
    at_most("weights that are not zero after pruning, against before", pruned / dense, STILL_ALIVE)
    at_most("weights that are not zero after one epoch, against after pruning", early / pruned, 1.0)
    at_most("weights that are not zero after seven, against after pruning", late / pruned, 1.0)


@check(points=1)
def test_the_meters_read_digits(evidence, inputs):
    """The meters read nearly as well as before pruning: a small model that is wrong helps nobody."""
    digits = inputs.validation.tensors[1].numpy()
    logits = evidence["pruned.logits"]
    right = float((logits.argmax(axis=1) == digits).mean()) if len(logits) == len(digits) else 0.0
    at_least("accuracy on the meter", right, LEAST_ACCURACY)
