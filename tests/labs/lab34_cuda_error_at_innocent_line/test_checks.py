# starter: test_a_wrong_label_is_refused_by_name test_the_survey_finds_every_label test_one_class_is_refused
"""A label that is no class gets no further than the host, and is told by its tile; all other tiles train as before."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from breakfix.checks import at_least, at_most, check, equal
from breakfix.probes.parity import relative_error

BOUNDS = {"cpu": 1e-4, "cuda": 1e-3}  # of float32 against float64


@pytest.fixture(scope="module")
def sound(inputs):
    """The names of the deliveries in which nothing is wrong."""
    return [name for name, delivery in inputs.deliveries.items() if delivery.sound]


@pytest.fixture(scope="module")
def spoiled(inputs):
    """For every other delivery the labels that are no class, by the name of the tile."""
    return {
        name: {inputs.names[name][i]: labels for i, labels in delivery.spoiled.items()}
        for name, delivery in inputs.deliveries.items()
        if not delivery.sound
    }


@check(points=3)
def test_a_wrong_label_is_refused_by_name(evidence, spoiled):
    """The loader raises a ValueError with the name of the tile and the label: on a card nobody could tell which it was."""
    for name, tiles in spoiled.items():
        equal(f"a ValueError was raised, {name}", evidence[f"{name}.is_value_error"], True)
        told = evidence[f"{name}.names_told"]
        at_least(f"tiles named that have a wrong label, {name}", len(set(told) & tiles.keys()), 1)
        equal(f"tiles named that have none, {name}", sorted(set(told) - tiles.keys()), [])
        labels = {label for tile in told for label in tiles[tile]}
        at_least(f"labels told of those, {name}", len(labels & set(evidence[f"{name}.labels_told"])), 1)


@check(points=2)
def test_the_survey_finds_every_label(evidence, inputs, sound, spoiled):
    """The survey lists every label that is no class, as it stands in the file, by tile; and nothing of a sound delivery."""
    for name in inputs.deliveries:
        wanted = {tile: sorted(labels) for tile, labels in spoiled.get(name, {}).items()}
        found = {tile: sorted(labels) for tile, labels in evidence[f"{name}.survey"].items()}
        equal(f"labels that are no class, {name}", sorted(found.items()), sorted(wanted.items()))


@check(points=1)
def test_one_class_is_refused(evidence):
    """With fewer than two classes the loader is not built: the cross entropy of one class is 0 whatever is answered."""
    equal("a ValueError was raised, one class", evidence["one class.is_value_error"], True)


@check(points=2)
def test_every_sound_tile_arrives(evidence, lab, sound):
    """Each sound tile comes once per epoch with its photo and its labels, one byte each, in an order of the generator."""
    m = lab.measurement
    full = [min(m.BATCH, m.TILES - start) for start in range(0, m.TILES, m.BATCH)]
    orders = {(name, epoch): evidence[f"{name}.order {epoch}"].tolist() for name in sound for epoch in range(2)}
    for name in sound:
        equal(f"raised, {name}", evidence[f"{name}.raised"], "")
        equal(f"dtypes, {name}", evidence[f"{name}.dtypes"], ["torch.float32", "torch.uint8"])
        for epoch in range(2):
            equal(f"tiles of epoch {epoch}, {name}", sorted(orders[name, epoch]), list(range(m.TILES)))
            equal(f"sizes of the batches of epoch {epoch}, {name}", evidence[f"{name}.sizes {epoch}"], full)
            equal(f"tiles with other labels in epoch {epoch}, {name}", evidence[f"{name}.wrong {epoch}"], 0)
        equal(f"the same order twice, {name}", orders[name, 0] == orders[name, 1], False)
        equal(f"the order of another delivery, {name}", orders[name, 0] == orders[sound[0], 0], True)
    equal("the epoch before a tile is redrawn", sorted(evidence["redrawn.order 0"].tolist()), list(range(m.TILES)))


def trained(m, inputs, name):
    """Losses [2] and weights after two steps in float64."""
    delivery = inputs.deliveries[name]
    model = m.model_for(delivery.classes, inputs.seeds[0]).double()
    photos, masks = m.batch_of(inputs, name, torch.device("cpu"))
    masks, losses = masks.long(), []
    counted = torch.ones_like(masks, dtype=torch.bool) if delivery.ignore is None else masks != delivery.ignore
    for _ in range(2):
        logits = model(photos.double()).permute(0, 2, 3, 1)[counted]
        losses.append(F.cross_entropy(logits, masks[counted]))
        gradients = torch.autograd.grad(losses[-1], list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p -= m.RATE * g
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return torch.stack(losses).detach().numpy(), weights.numpy()


@check(points=1)
def test_training_is_what_it_was(evidence, inputs, lab, sound, device):
    """Loss and update of a batch are those of all pixels but the ones to be ignored, whatever number stands for these."""
    for name in sound:
        losses, weights = trained(lab.measurement, inputs, name)
        error = relative_error(evidence[f"{name}.losses"].astype(np.float64), losses)
        at_most(f"error of the losses, {name}", error, BOUNDS[device.type])
        at_most(
            f"error of the weights, {name}", relative_error(evidence[f"{name}.weights"], weights), BOUNDS[device.type]
        )


@check(points=1)
def test_a_step_does_not_wait(evidence, sound):
    """A step reads nothing from the card and copies nothing: labels are looked at on the host, where they come from."""
    for name in sound:
        equal(f"raised on the card, {name}", evidence[f"{name}.card.raised"], "")
        at_most(f"reads and copies in a step, {name}", evidence[f"{name}.card.waits"], 0)
