# starter: test_requests_share_forwards test_bad_requests_fail_alone test_faults_of_the_model_stay_loud test_the_server_stays_free_and_keeps_no_graph
"""Requests that come together share a forward, and each gets what it would have got alone."""

import math

import numpy as np
import pytest
import torch

from breakfix.checks import at_least, at_most, check, equal


@pytest.fixture(scope="module")
def reference(lab, inputs):
    """The scores [N, 3] of each wave in float64, every record alone."""
    model = lab.measurement.Scorer()
    model.load_state_dict(inputs.weights)
    model.double().eval()

    def scores(record):
        with torch.no_grad():
            return model(record.double()[None], torch.zeros(1, len(record), dtype=torch.bool))[0]

    return {name: torch.stack([scores(r) for r in records]).numpy() for name, records in inputs.waves.items()}


def bursts(lab, inputs):
    """The waves of good requests alone, and the largest batch that each allows."""
    sizes = {f"{load} at once": lab.measurement.LOAD_BATCH for load in lab.measurement.LOADS}
    return sizes | {"many": inputs.max_batch, "full": lab.measurement.LOAD_BATCH, "one by one": 3}


def unserved(evidence, name, besides=()):
    """How many of a wave were not answered with 200."""
    status = np.delete(evidence[f"{name}.status"], list(besides))
    return int((status != 200).sum())


def worst(evidence, name, wanted):
    """The largest error of the answers that came with 200, against the size of what was wanted."""
    answered = evidence[f"{name}.status"] == 200
    error = np.abs(evidence[f"{name}.scores"][answered] - wanted[: len(answered)][answered])
    return float(error.max(initial=0.0) / np.sqrt(np.mean(wanted**2)))


def marked(inputs, name, mark):
    return [i for i, record in enumerate(inputs.waves[name]) if record[0, 0] == torch.tensor(mark)]


@check(points=2)
def test_requests_share_forwards(evidence, inputs, lab):
    """N requests at once cost N / max_batch forwards, and no batch is larger than allowed: that is what memory is for."""
    for name, size in bursts(lab, inputs).items():
        bound = math.ceil(len(inputs.waves[name]) / size) + 1
        at_most(f"forwards, {name}", evidence[f"{name}.forwards"], bound)
        at_most(f"largest batch, {name}", evidence[f"{name}.largest"], size)
    at_most("forwards of two full batches, the second filled slowly", evidence["after a full one.forwards"], 2)


@check(points=1)
def test_everybody_is_served_in_time(evidence, inputs, lab):
    """A single request, a last short batch and a full one are served, and the first of a batch waits max_wait at most."""
    for name in bursts(lab, inputs):
        at_most(f"requests not served, {name}", unserved(evidence, name), 0)
    at_most("requests not served, trickle", unserved(evidence, "trickle"), 0)
    at_most("requests that came before the first was answered", evidence["trickle.sent"], lab.measurement.TRICKLE // 2)


@check(points=2)
def test_everybody_gets_their_own_answer(evidence, inputs, lab, reference, device):
    """Each record is scored as if it were alone: not another's scores, none of its batch's padding, no dropout."""
    bound = lab.measurement.TOLERANCE[device.type]
    for name in bursts(lab, inputs):
        at_most(f"error of the scores, {name}", worst(evidence, name, reference[name]), bound)
        answered = len(inputs.waves[name]) - unserved(evidence, name)
        at_least(f"records that the model saw, {name}", evidence[f"{name}.rows"], answered)
    at_least("requests of the burst that were served", len(inputs.waves["many"]) - unserved(evidence, "many"), 1)
    equal("forwards in training mode", evidence["training"], 0)


@check(points=2)
def test_bad_requests_fail_alone(evidence, inputs, lab, reference, device):
    """What is no record, or not finite in float32, gets a 4xx; whoever shares its moment is served, and so is the next."""
    count = len(inputs.waves["mixed"])
    status = evidence["mixed.status"][np.argsort(inputs.order)]
    scores = evidence["mixed.scores"][np.argsort(inputs.order)]
    at_most("bad requests without a 4xx", int(((status[count:] < 400) | (status[count:] >= 500)).sum()), 0)
    at_most("good requests not served beside bad ones", int((status[:count] != 200).sum()), 0)
    found = {"mixed.status": status[:count], "mixed.scores": scores[:count]}
    bound = lab.measurement.TOLERANCE[device.type]
    at_most("error of the scores beside bad ones", worst(found, "mixed", reference["mixed"]), bound)
    at_most("requests not served after bad ones", unserved(evidence, "after the bad"), 0)
    at_most("error after bad ones", worst(evidence, "after the bad", reference["after the bad"]), bound)


@check(points=1)
def test_faults_of_the_model_stay_loud(evidence, inputs, lab, reference, device):
    """A record on which the model raises, or gives nan, is a 500 and nobody else's; a fault of all ends when it ends."""
    bound = lab.measurement.TOLERANCE[device.type]
    for name, mark in (("poisoned", inputs.poison), ("blind", inputs.blind)):
        rows = marked(inputs, name, mark)
        quiet = int((evidence[f"{name}.status"][rows] < 500).sum())
        at_most(f"faults that were no 500, {name}", quiet, 0)
        at_most(f"others not served, {name}", unserved(evidence, name, besides=rows), 0)
        at_most(f"error of the others, {name}", worst(evidence, name, reference[name]), bound)
    at_most("requests without a 500 while the model is broken", int((evidence["broken.status"] < 500).sum()), 0)
    at_most("requests not served afterwards", unserved(evidence, "after the faults"), 0)


@check(points=1)
def test_a_client_that_leaves_hurts_nobody(evidence, inputs, lab, reference, device):
    """Whoever leaves, waiting or with the record in the model, the others get their answers, and those who come next."""
    for name, left in {"left waiting": [1], "first left": [0], "held": [1], "after the leavers": []}.items():
        at_most(f"requests not served, {name}", unserved(evidence, name), 0)
        wanted = np.delete(reference[name], left, axis=0)
        at_most(f"error of the scores, {name}", worst(evidence, name, wanted), lab.measurement.TOLERANCE[device.type])


@check(points=1)
def test_the_server_stays_free_and_keeps_no_graph(evidence):
    """While the model computes the server answers others, and no forward is recorded for a backward that never comes."""
    equal("health, asked during a forward", evidence["held.health_came"], "at once")
    equal("status of the health", evidence["held.health"], 200)
    equal("forwards that kept a graph", evidence["graphs"], 0)
