# starter: test_validation_leaves_no_trace test_an_answer_does_not_depend_on_its_batch test_the_shared_backbone_stays_as_published test_statistics_come_from_training_alone test_training_still_trains
"""Validation reads a model and answers as production does; training moves what is to be trained, and nothing else."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from breakfix.checks import at_least, at_most, check, equal
from breakfix.probes.parity import relative_error

BOUNDS = {"cpu": (0.0, 1e-4), "cuda": (1e-5, 1e-3)}  # two runs of one seed; float32 against float64


def values(lab, state):
    return lab.measurement.vector(state).numpy()


def tensors(inputs, vector):
    """The tensors of which `vector` is made, by name."""
    names = sorted(name for name in inputs.published if not name.endswith("num_batches_tracked"))
    ends = np.cumsum([inputs.published[name].numel() for name in names])
    pieces = np.split(vector, ends[:-1])
    return {name: piece.reshape(inputs.published[name].shape) for name, piece in zip(names, pieces, strict=True)}


def part(inputs, vector, beginning):
    """The values in `vector` of the parts whose names begin so."""
    return np.concatenate([t.ravel() for name, t in tensors(inputs, vector).items() if name.startswith(beginning)])


def lowest_loss(lab, inputs, name, vector):
    """The mean loss of the photos trained on, by whichever statistics fit best: which ones is another check's matter."""
    model = lab.measurement.Inspector()
    photos, kinds = inputs.training[name].tensors
    losses = []
    for backbone, neck in (False, False), (False, True), (True, True):  # True: by those of all these photos together
        model.load_state_dict(inputs.published | {k: torch.tensor(v) for k, v in tensors(inputs, vector).items()})
        model.backbone.train(backbone), model.neck.train(neck)
        losses.append(F.cross_entropy(model(photos), kinds).item())
    return min(losses)


@pytest.fixture(scope="module")
def production(lab, inputs):
    """Loss and logits of the validation photos in float64, as production computes them: one at a time."""

    def answer(model, state):
        model.load_state_dict(state)
        photos, kinds = inputs.validation.tensors
        with torch.no_grad():
            logits = model.double().eval()(photos.double())
        return F.cross_entropy(logits, kinds).item(), logits.numpy()

    ours = answer(lab.measurement.Inspector(), inputs.published)
    ways = (*lab.measurement.MODES, *lab.measurement.SIZES)
    return dict.fromkeys(ways, ours) | {"another model": answer(lab.measurement.Stranger(), inputs.stranger)}


@check(points=2)
def test_validation_leaves_no_trace(evidence, inputs, lab, device):
    """No value differs afterwards: whatever modes the model was in, and whether or not it was validated in training."""
    for name in (*lab.measurement.MODES, *lab.measurement.SIZES, "another model", "torn"):
        state = inputs.stranger if name == "another model" else inputs.published
        distance = float(np.abs(evidence[f"{name}.state"] - values(lab, state)).max())
        at_most(f"largest change by a validation, {name}", distance, 0.0)
    for name in lab.measurement.TRAINING:
        validated, never = (evidence[f"{name}, {how}.state"] for how in ("validated", "never validated"))
        at_most(f"run with validations against run without, {name}", relative_error(validated, never), _same(device))


@check(points=2)
def test_modes_come_back(evidence, lab):
    """Each part of a model is in the mode that it was in before, also after a photo that cannot be read."""
    for name in (*lab.measurement.MODES, "another model", "torn"):
        equal(f"flags turned, {name}", len(evidence[f"{name}.switched"]), 0)
        equal(f"gradients enabled afterwards, {name}", evidence[f"{name}.grad_enabled"], True)
    equal("raised by a photo that cannot be read", evidence["torn.raised"], "OSError")


@check(points=2)
def test_an_answer_does_not_depend_on_its_batch(evidence, production, device):
    """Each photo is answered as in production: whatever else is in its batch, and a last one by itself too."""
    for name, (loss, logits) in production.items():
        equal(f"photos answered, {name}", len(evidence[f"{name}.answers"]), len(logits))
        at_most(f"error of the answers, {name}", relative_error(evidence[f"{name}.answers"], logits), _near(device))
        at_most(f"error of the loss, {name}", relative_error(evidence[f"{name}.loss"], loss), _near(device))


@check(points=1)
def test_the_shared_backbone_stays_as_published(evidence, inputs, lab):
    """After training no value of the backbone differs from the published one: others run on the same file."""
    wanted = part(inputs, values(lab, inputs.published), "backbone")
    for name in lab.measurement.TRAINING:
        got = part(inputs, evidence[f"{name}, never validated.state"], "backbone")
        at_most(f"largest change of the backbone, {name}", float(np.abs(got - wanted).max()), 0.0)


def neck_after_training(lab, inputs, name, left_over):
    """The neck's running mean and variance in float64: the published backbone's features, batch by batch."""
    model = lab.measurement.Inspector()
    model.load_state_dict(inputs.published)
    model.double().eval()
    model.neck.train()
    photos, size = inputs.training[name].tensors[0].double(), lab.measurement.BATCH
    batches = list(photos.split(size))
    if len(batches[-1]) == 1:
        last = batches.pop()
        batches[-1] = torch.cat([batches[-1], last]) if left_over == "joined" else batches[-1]
    with torch.no_grad():
        for batch in batches * lab.measurement.EPOCHS:
            model.neck(model.backbone(batch))
    return np.concatenate([model.neck.running_mean.numpy(), model.neck.running_var.numpy()])


@check(points=1)
def test_statistics_come_from_training_alone(evidence, inputs, lab, device):
    """The neck has seen the backbone's production features of the training batches, each once an epoch, and no other."""
    for name in lab.measurement.TRAINING:
        wanted = [neck_after_training(lab, inputs, name, how) for how in ("left out", "joined")]
        for how in ("validated", "never validated"):
            got = part(inputs, evidence[f"{name}, {how}.state"], "neck.running")
            error = min(relative_error(got, w) for w in wanted)
            at_most(f"error of the neck's mean and variance, {name}, {how}", error, 10 * _near(device))


@check(points=2)
def test_training_still_trains(evidence, inputs, lab):
    """Training gets through each epoch and learns, with as much dropout as before."""
    share = float(evidence["pairs.untouched"])  # both photos of a pair have lost this feature
    at_least("dropout rate seen in the head's updates", math.sqrt(share), lab.measurement.P - 0.1)
    at_most("dropout rate seen in the head's updates", math.sqrt(share), lab.measurement.P + 0.1)
    for name in lab.measurement.TRAINING:
        start = lowest_loss(lab, inputs, name, values(lab, inputs.published))
        for how in ("validated", "never validated"):
            key = f"{name}, {how}"
            equal(f"raised, {key}", evidence[f"{key}.raised"], "")
            equal(f"epochs, {key}", int(np.isfinite(evidence[f"{key}.losses"]).sum()), lab.measurement.EPOCHS)
            batches, over = divmod(len(inputs.training[name]), lab.measurement.BATCH)
            updates = (batches + (over > 1)) * lab.measurement.EPOCHS
            equal(f"updates, {key}", evidence[f"{key}.updates"], updates)
            loss = lowest_loss(lab, inputs, name, evidence[f"{key}.state"])
            at_most(f"loss after training against before, {key}", loss / start, 0.5)
            moved = part(inputs, evidence[f"{key}.state"] - values(lab, inputs.published), ("neck", "head"))
            at_least(f"values of neck and head that moved, {key}", float((moved != 0).mean()), 0.9)


def _same(device):
    return BOUNDS[device.type][0]


def _near(device):
    return BOUNDS[device.type][1]
