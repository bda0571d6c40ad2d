# starter: test_workers_do_not_repeat_each_other test_epochs_differ
"""Every clip is drawn anew, whoever makes it; a run repeats from its seed; and nothing else has changed."""

from itertools import pairwise

import numpy as np
import pytest

from breakfix.checks import at_least, at_most, check, equal

REPEATED = {"gain": 0.1, "place": 0.25}  # by chance 1e-3 of the gains, and 6 % of the places in three epochs
TRUE = 1e-5  # a window of a recording times its gain, in float32


@pytest.fixture(scope="module")
def runs(evidence, inputs, lab):
    """(regime, run) to how its clips were drawn, and to the epoch and the recording of each."""
    found = {}
    for name in lab.measurement.REGIMES:
        for run in lab.measurement.RUNS:
            clips, ids, epoch = (evidence[f"{name}, {run}.{key}"] for key in ("clips", "ids", "epoch"))
            found[name, run] = lab.measurement.draws(clips, ids, inputs.recordings), epoch, ids
    return found


def repeated(lab, draws, chosen):
    """The shares of the chosen clips whose gain, and whose place, another one of them has too."""
    gains, places = np.sort(draws.gains[chosen]), draws.starts[chosen]
    close = np.diff(gains) <= lab.measurement.SAME
    same = np.append(close, False) | np.insert(close, 0, False)
    _, which, counts = np.unique(places, return_inverse=True, return_counts=True)
    return {"gain": share(same), "place": share(counts[which] > 1)}


def found_in(lab, gains, places, others):
    """The shares of gains and of places that are also among the gains and the places of `others`."""
    near = np.abs(gains[:, None] - others[0]).min(axis=1, initial=np.inf) <= lab.measurement.SAME
    return {"gain": share(near), "place": share(np.isin(places, others[1]))}


def share(which):
    """The share of clips for which it holds; nan of no clips."""
    return float(np.mean(which)) if len(which) else float("nan")


@check(points=2)
def test_workers_do_not_repeat_each_other(lab, runs):
    """Within an epoch no two clips are drawn alike, whichever workers make them: else there is less data than it seems."""
    for name in lab.measurement.REGIMES:
        draws, epoch, _ = runs[name, "first"]
        found = [repeated(lab, draws, epoch == e) for e in range(lab.measurement.EPOCHS)]
        for what, bound in REPEATED.items():
            at_most(f"clips with another's {what} in an epoch, {name}", max(f[what] for f in found), bound)


@check(points=2)
def test_epochs_differ(lab, runs):
    """No draw of an epoch is in another one, and what a recording gets says nothing about what it gets next."""
    before, after = [], []
    for name in lab.measurement.REGIMES:
        draws, epoch, ids = runs[name, "first"]
        found = []
        for e in range(lab.measurement.EPOCHS):
            others = draws.gains[epoch != e], draws.starts[epoch != e]
            found.append(found_in(lab, draws.gains[epoch == e], draws.starts[epoch == e], others))
            now, then = (dict(zip(ids[epoch == k], draws.gains[epoch == k], strict=True)) for k in (e, e + 1))
            before += [now[i] for i in now if i in then]
            after += [then[i] for i in now if i in then]
        for what, bound in REPEATED.items():
            at_most(f"clips with a {what} of another epoch, {name}", max(f[what] for f in found), bound)
    at_most("correlation of a recording's gain with its next", correlation(before, after), 0.5)


@check(points=2)
def test_the_seed_alone_decides(evidence, lab, runs):
    """The same seed gives the same clips to the bit, whoever else draws numbers; the seed after it gives none of them."""
    for name in lab.measurement.REGIMES:
        for key in "ids", "clips":
            first, again = (evidence[f"{name}, {run}.{key}"] for run in ("first", "again"))
            equal(f"same {key} from the same seed, {name}", bool(np.array_equal(first, again)), True)
        first, other = runs[name, "first"][0], runs[name, "next seed"][0]
        found = found_in(lab, other.gains, other.starts, (first.gains, first.starts))
        for what, bound in REPEATED.items():
            at_most(f"clips with a {what} of another seed, {name}", found[what], bound)


@check(points=1)
def test_place_and_gain_are_drawn_as_before(lab, runs):
    """Places and gains are uniform over the whole range, and independent: other augmentations are another training."""
    gains, places = different_draws(lab, runs)
    low, high = lab.measurement.GAIN
    last = lab.measurement.LENGTH - lab.measurement.WINDOW
    for what, values, start, end in ("gain", gains, low, high), ("place", places, 0, last):
        values = (values - start) / (end - start)
        at_least(f"smallest {what}, 0 is the least that may be", values.min(initial=np.inf), -1e-6)
        at_most(f"smallest {what}, 0 is the least that may be", values.min(initial=np.inf), 0.1)
        at_most(f"largest {what}, 1 is the most that may be", values.max(initial=-np.inf), 1 + 1e-6)
        at_least(f"largest {what}, 1 is the most that may be", values.max(initial=-np.inf), 0.9)
        at_most(f"distance of the {what}s from uniform", distance(values), 0.2)
    at_most("correlation of gain and place", abs(correlation(gains, places)), 0.4)


def different_draws(lab, runs):
    """Gain and place of every draw of all runs, each once: that some repeat is another check's matter."""
    gains, places = [], []
    for name in lab.measurement.REGIMES:
        some = [runs[name, run][0] for run in ("first", "next seed")]
        of, at = np.concatenate([d.gains for d in some]), np.concatenate([d.starts for d in some])
        new = lab.measurement.firsts(of)
        gains.append(of[new]), places.append(at[new])
    return np.concatenate(gains), np.concatenate(places)


def distance(values):
    """The largest distance between the share of values up to x and x (Kolmogorov and Smirnov)."""
    values = np.sort(values)
    steps = np.linspace(0, 1, len(values) + 1)
    return float(np.maximum(np.abs(values - steps[:-1]), np.abs(values - steps[1:])).max(initial=0))


def correlation(some, others):
    """Pearson's; 1 if one of them does not vary at all."""
    if len(some) < 2 or np.std(some) == 0 or np.std(others) == 0:
        return 1.0
    return float(np.corrcoef(some, others)[0, 1])


@check(points=2)
def test_every_recording_once_with_its_label(evidence, inputs, lab, runs):
    """Each epoch has one clip of every recording, with its label, in eights and in an order of its own."""
    count, eight, epochs = lab.measurement.COUNT, lab.measurement.BATCH, lab.measurement.EPOCHS
    labels = np.array(inputs.recordings.labels)
    for name in lab.measurement.REGIMES:
        draws, epoch, ids = runs[name, "first"]
        orders = [ids[epoch == e] for e in range(epochs)]
        complete = sum(np.array_equal(np.sort(order), np.arange(count)) for order in orders)
        equal(f"epochs with every recording once, {name}", complete, epochs)
        eights = [min(eight, count - start) for start in range(0, count, eight)]
        equal(
            f"batches of eight but for the last, {name}", evidence[f"{name}, first.batches"] == [eights] * epochs, True
        )
        at_most(f"error of the clips, {name}", float(draws.errors.max(initial=0)), TRUE)
        at_most(f"labels of others, {name}", int((evidence[f"{name}, first.labels"] != labels[ids]).sum()), 0)
        other = runs[name, "next seed"][2][:count]
        pairs = [*pairwise(orders), (orders[0], other)]
        same = max(share(a == b) if len(a) == len(b) else 0.0 for a, b in pairs)
        at_most(f"recordings in the same place of an epoch again, {name}", same, 0.5)


@check(points=1)
def test_workers_and_trainer_keep_their_work(evidence, lab):
    """Workers read, as many as asked for and for as long; the trainer's own random numbers are not set back."""
    count, epochs = lab.measurement.COUNT, lab.measurement.EPOCHS
    for name, (workers, lasting) in lab.measurement.REGIMES.items():
        key = f"{name}, first"
        equal(f"workers that read in each epoch, {name}", evidence[f"{key}.workers"], [workers] * epochs)
        if workers:
            at_least(f"recordings read by workers in an epoch, {name}", min(evidence[f"{key}.read_by_workers"]), count)
        if lasting:
            equal(f"workers in all epochs together, {name}", evidence[f"{key}.workers_in_all"], workers)
        drawn = np.concatenate([evidence[f"{name}, {run}.trainer"] for run in lab.measurement.RUNS])
        for who, numbers in zip(("torch", "NumPy", "random"), drawn.T, strict=True):
            equal(f"different numbers of the trainer's {who}, {name}", len(np.unique(numbers)), len(numbers))
