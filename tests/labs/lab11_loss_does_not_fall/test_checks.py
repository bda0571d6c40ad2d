# starter: test_each_cause_is_named test_the_healthy_are_left_alone test_a_diagnosis_changes_nothing test_repaired_trainers_learn test_only_the_cause_is_changed
"""Each sick trainer is told its cause and repaired, each healthy one is sent home, and nothing else is touched."""

import pytest

from breakfix.checks import at_least, at_most, check, equal

LEARNED = 0.6  # of the loss of the best constant answer, on unseen rows
UNTRAINED = 0.8  # of the same, before the platform trains it: that is not the repair's to do
OBJECTIVE = {"cpu": 1e-4, "cuda": 1e-3}  # relative error of a loss in float32


def listed(names):
    return ", ".join(names) or "nothing"


@pytest.fixture(scope="module")
def sick(inputs):
    """The patients that have something, in the order of the table."""
    return sorted((p for p in inputs if p.cause != "healthy"), key=lambda p: (p.cause, p.name))


@pytest.fixture(scope="module")
def sound(inputs):
    """The patients that have nothing."""
    return sorted((p for p in inputs if p.cause == "healthy"), key=lambda p: p.name)


@check(points=3)
def test_each_cause_is_named(evidence, sick):
    """Every sick trainer is told its own cause, whatever it is built of: a loss that is flat does not say why."""
    for p in sick:
        equal(f"cause named, {p.name}", evidence[f"{p.name}.named"], p.cause)


@check(points=2)
def test_the_healthy_are_left_alone(evidence, sound):
    """A trainer that has nothing is told so, and comes back bit for bit: a clinic that finds something in all is none."""
    for p in sound:
        equal(f"cause named, {p.name}", evidence[f"{p.name}.named"], "healthy")
        equal(f"changed by the repair, {p.name}", listed(evidence[f"{p.name}.altered"]), "nothing")


@check(points=1)
def test_a_diagnosis_changes_nothing(evidence, sick, sound):
    """After a diagnosis all weights, states, modes and settings are what they were: it is the next one's starting point."""
    for p in (*sick, *sound):
        equal(f"changed by the diagnosis, {p.name}", listed(evidence[f"{p.name}.touched"]), "nothing")


@check(points=2)
def test_repaired_trainers_learn(evidence, sick):
    """Trained as long as before, a repaired trainer predicts unseen rows, and none of its weight matrices stands still."""
    for p in sick:
        at_most(f"loss next to a constant answer's, {p.name}", evidence[f"{p.name}.loss"], LEARNED)
        equal(f"weights that stand still, {p.name}", listed(evidence[f"{p.name}.still"]), "nothing")


@check(points=2)
def test_only_the_cause_is_changed(evidence, sick, lab, device):
    """Same names and shapes, same data in the same order, same settings, and the loss that the task asks for."""
    for p in sick:
        equal(f"changed by the repair, {p.name}", listed(evidence[f"{p.name}.altered"]), "nothing")
        equal(f"rows with another's target, {p.name}", evidence[f"{p.name}.mispaired"], 0)
        at_least(f"rows, {p.name}", evidence[f"{p.name}.rows"], lab.measurement.ROWS - 2 * lab.measurement.MAX_SHIFT)
        at_most(f"rows, {p.name}", evidence[f"{p.name}.rows"], lab.measurement.ROWS)
        if p.cause in lab.measurement.NEW_WEIGHTS:
            loss = evidence[f"{p.name}.untrained"]
            at_least(f"loss before the platform trains it, {p.name}, next to a constant answer's", loss, UNTRAINED)
        at_most(f"error of the loss, {p.name}", evidence[f"{p.name}.objective"], OBJECTIVE[device.type])
