# starter: test_each_photo_is_decoded_once test_workers_start_once_and_do_the_work test_workers_take_little_memory test_validation_counts_each_record_once test_a_broken_photo_is_named
"""Nothing is done twice: not by each epoch, not by each worker, not in memory. And the same samples come."""

import numpy as np
import pytest
from torchvision.io import decode_jpeg

from breakfix.checks import at_least, at_most, check, equal

WRITTEN_MIB = 3.5  # by two workers in an epoch: tensors and arrays 0.3 to 0.7, Python objects 11 and more


@check(points=3)
def test_each_photo_is_decoded_once(evidence, lab):
    """A photo is decoded once in the life of a loader, whoever needs it: decoding is most of the work, and it is the same."""
    for name in lab.measurement.REGIMES:
        equal(f"photos decoded, {name}", evidence[f"{name}.photos_decoded"], lab.measurement.PHOTOS)
        at_most(f"decodes of one photo, {name}", evidence[f"{name}.most_decodes_of_a_photo"], 1)
        at_most(f"decodes in the last epoch, {name}", evidence[f"{name}.decodes_in_last_epoch"], 0)


@check(points=1)
def test_workers_start_once_and_do_the_work(evidence, lab):
    """As many workers as asked for, started once and not for each epoch; they cut and augment, and the trainer does not."""
    for name, (workers, *_) in lab.measurement.REGIMES.items():
        equal(f"workers started, {name}", evidence[f"{name}.workers_started"], workers)
        if workers:
            at_most(f"spots augmented by the trainer, {name}", evidence[f"{name}.augmented_by_trainer"], 0)
    for name, (workers, _) in lab.measurement.STATIONS.items():
        equal(f"workers started, validation, {name}", evidence[f"validation, {name}.workers_started"], workers)


@check(points=2)
def test_workers_take_little_memory(evidence):
    """Workers take little memory of their own while an epoch runs: there are many of them, and one host."""
    at_most(
        "memory that two workers have taken by the end of an epoch",
        evidence["two workers.written_mib"],
        WRITTEN_MIB,
        "MiB",
    )


@check(points=2)
def test_validation_counts_each_record_once(evidence, inputs, lab):
    """Each record comes once, and is read once, with any number of workers: else a mean is one of copies."""
    every = np.arange(len(inputs.kinds))
    for name, (workers, times) in lab.measurement.STATIONS.items():
        key = f"validation, {name}"
        found = np.sort(evidence[f"{key}.ids"])
        equal(f"records, {name}", len(found), len(every) * times)
        equal(f"each record once a validation, {name}", bool(np.array_equal(found, np.repeat(every, times))), True)
        at_most(f"records that are others, {name}", evidence[f"{key}.wrong"], 0)
        at_most(f"reads of one record, {name}", evidence[f"{key}.most_reads_of_a_record"], 1)
        if workers:
            at_most(f"records read by the trainer, {name}", evidence[f"{key}.read_by_trainer"], 0)
            equal(f"workers that read, {name}", evidence[f"{key}.readers"], [workers] * times)


@pytest.fixture(scope="module")
def digests(inputs, lab):
    """A function from marks to the digests of their spots, and of the mirror images."""
    photos, weights = [decode_jpeg(data).numpy() for data in inputs.files], lab.measurement.FLIP
    size = lab.measurement.SPOT

    def of(ids):
        found = []
        for photo, top, left, _ in inputs.marks[ids].tolist():
            spot = photos[photo][:, top : top + size, left : left + size]
            found.append(((spot * weights).sum(), (spot * weights[:, :, ::-1]).sum()))
        return np.array(found).reshape(-1, 2)

    return of


@check(points=1)
def test_spots_are_those_of_the_sampler(evidence, inputs, lab, digests):
    """The sampler's spots in its order, exact, each augmented anew: a cache must not freeze what is random."""
    for name, (_, epochs, count, _) in lab.measurement.REGIMES.items():
        ids, size = evidence[f"{name}.ids"], lab.measurement.BATCH
        equal(
            f"spots in the sampler's order, {name}",
            bool(np.array_equal(ids, np.concatenate(inputs.epochs[name]))),
            True,
        )
        sizes = [min(size, count - start) for start in range(0, count, size)]
        equal(f"batches of 64 but for the last, {name}", evidence[f"{name}.batches"] == [sizes] * epochs, True)
        at_most(f"kinds of others, {name}", int((evidence[f"{name}.kinds"] != inputs.marks[ids, 3]).sum()), 0)
        wanted, found = digests(ids), evidence[f"{name}.digests"]
        as_it_is, mirrored = (found == wanted[:, i] for i in (0, 1))
        at_most(f"spots that differ, {name}", int((~as_it_is & ~mirrored).sum()), 0)
        equal(f"spots augmented in each epoch, {name}", evidence[f"{name}.augmented"], [count] * epochs)
        at_least(f"share of mirror images, {name}", float(mirrored.mean()), 0.35)
        at_most(f"share of mirror images, {name}", float(mirrored.mean()), 0.65)


@check(points=1)
def test_a_broken_photo_is_named(evidence):
    """A photo that cannot be decoded is an error that says which one: hours into a run nobody can guess it."""
    for workers in 0, 2:
        equal(f"what comes of a broken photo, {workers} workers", evidence[f"broken photo, {workers} workers"], "named")
