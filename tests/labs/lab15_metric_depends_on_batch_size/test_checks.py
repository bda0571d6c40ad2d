# starter: test_accuracy_counts_tokens test_f1_is_of_all_tokens test_auroc_ranks_all_tokens test_perplexity_is_of_the_mean test_each_epoch_speaks_of_its_model test_ranks_report_what_one_would
"""The figures are those of the data set: batch size, order, ranks and earlier epochs do not move them."""

import numpy as np
import pytest

from breakfix.checks import at_most, check, equal

ERROR = 1e-5  # relative; a right file has 2e-7 at worst, one pair of tokens in the wrong order 3e-5


@pytest.fixture(scope="module")
def true(inputs, lab):
    """The four figures of each set of answers, by definition, in float64."""
    return {name: reference(answers, lab.measurement.IGNORE) for name, answers in inputs.items()}


def reference(answers, ignore):
    counted = (answers.tags != ignore).numpy()
    tags = answers.tags.numpy()[counted]
    logits = answers.logits.double()[answers.words].numpy()[counted]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    named, kinds = logits.argmax(1), range(logits.shape[1])
    return {
        "accuracy": np.mean(named == tags),
        "f1": np.mean([f1(named == kind, tags == kind) for kind in kinds]),
        "auroc": np.mean([auroc(probabilities[:, kind], tags == kind) for kind in kinds]),
        "perplexity": np.exp(-np.mean(np.log(probabilities[np.arange(len(tags)), tags]))),
    }


def f1(named, true):
    return 2 * np.sum(named & true) / (np.sum(named) + np.sum(true))


def auroc(score, true):
    """How often one that is has a higher score than one that is not; half where they are equal."""
    above = score[true][:, None] - score[~true][None]
    return np.mean((above > 0) + 0.5 * (above == 0))


def demand(figure, evidence, true, lab):
    """This figure is right for all answers and batch sizes of one process."""
    m = lab.measurement
    column = m.FIGURES.index(figure)
    for name, wanted in true.items():
        for size, found in zip(m.SIZES_OF.get(name, m.SIZES), evidence[f"{name}.figures"][:, column], strict=True):
            at_most(f"error, {name}, batches of {size}", abs(found / wanted[figure] - 1), ERROR)


@check(points=2)
def test_accuracy_counts_tokens(evidence, true, lab):
    """Accuracy is the share of the tokens that are right: every token weighs the same, in whichever batch it is."""
    demand("accuracy", evidence, true, lab)


@check(points=1)
def test_f1_is_of_all_tokens(evidence, true, lab):
    """F1 comes from the counts of all tokens: a mean of batches' F1 is another number, even for equal batches."""
    demand("f1", evidence, true, lab)


@check(points=1)
def test_auroc_ranks_all_tokens(evidence, true, lab):
    """AUROC compares every token with every other: a batch alone cannot know, nor what its scores mean elsewhere."""
    demand("auroc", evidence, true, lab)


@check(points=1)
def test_perplexity_is_of_the_mean(evidence, true, lab):
    """Perplexity is the exponential of the mean over tokens, not the mean of exponentials, nor of means of batches."""
    demand("perplexity", evidence, true, lab)


@check(points=2)
def test_each_epoch_speaks_of_its_model(evidence, lab):
    """A Validator that is kept says of each epoch what a fresh one would: a worse model gets worse figures."""
    m = lab.measurement
    for epoch, (kept, fresh) in enumerate(zip(evidence["epochs.kept"], evidence["epochs.fresh"], strict=True)):
        for figure, a, b in zip(m.FIGURES, kept, fresh, strict=True):
            at_most(f"kept against fresh, epoch {epoch}, {figure}", abs(a / b - 1), ERROR)
    fell = evidence["epochs.kept"][0] - evidence["epochs.kept"][1]
    equal("accuracy falls with the model", bool(fell[0] > 0), True)


@check(points=2)
def test_ranks_report_what_one_would(evidence, true, lab):
    """Two and three ranks report what one process would, each of them the same: no sequence counts twice."""
    for world, (name, _) in lab.measurement.RANKS.items():
        where = " / ".join(line.strip() for line in evidence[f"{world} ranks.parted"][0].splitlines()[1:])
        equal(f"where they part, {world} ranks", where, "")
        for column, figure in enumerate(lab.measurement.FIGURES):
            found = evidence[f"{world} ranks.figures"][:, column]
            worst = float(np.max(np.abs(found / true[name][figure] - 1)))
            at_most(f"error of the {figure}, {world} ranks", worst, ERROR)


@check(points=1)
def test_the_work_stays_shared(evidence, lab):
    """No batch is larger than asked for, no rank has more than its part, and the model is asked as one validates."""
    m = lab.measurement
    for world, (_, size) in m.RANKS.items():
        equal(f"where they part, {world} ranks", evidence[f"{world} ranks.parted"][0], "")
        at_most(f"largest batch, {world} ranks", max(evidence[f"{world} ranks.largest batch"]), size)
        at_most(f"most sequences of a rank, {world} ranks", max(evidence[f"{world} ranks.sequences"]), -(-37 // world))
        equal(f"calls in training mode, {world} ranks", sum(evidence[f"{world} ranks.trained"]), 0)
    for size, largest in zip(m.SIZES, evidence["good.largest batch"], strict=True):
        at_most(f"largest batch, batches of {size}", largest, min(size, 37))
    equal("calls in training mode", sum(evidence["good.trained"]), 0)
