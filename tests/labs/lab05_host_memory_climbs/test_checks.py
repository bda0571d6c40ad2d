# starter: test_pinned_memory_stays_within_its_budget test_few_scans_wait
"""The loader's memory on the host stays small, and training gets the same scans as early as before."""

import numpy as np

from breakfix.checks import at_least, at_most, check, equal, not_measurable

NAMES = ("resampled", "mixed")
RESIDENT_MIB = 44  # the larger budget, and what queues, workers and a batch on the card add to it


@check(points=3)
def test_pinned_memory_stays_within_its_budget(evidence, outside, lab, device):
    """The pinned memory that the process holds, used or not, never exceeds its budget: it is not returned by itself."""
    settled(evidence)
    for name in NAMES:
        what = f"pinned memory held ({evidence[f'{name}.pinned_by']}), {name}"
        at_most(what, evidence[f"{name}.pinned_peak_mib"], lab.measurement.REGIMES[name].pinned_mib, "MiB")
    if device.type == "cpu":  # with CUDA the driver's own memory is in it
        grown = outside["maxrss_mib"] - outside["idle_maxrss_mib"]
        at_most("resident memory over an idle run", grown, RESIDENT_MIB, "MiB")


@check(points=2)
def test_few_scans_wait(evidence, lab):
    """Few scans are read long before they are needed: wherever they wait, pinned or in /dev/shm, they take memory."""
    settled(evidence)
    for name in NAMES:
        waiting, bound = evidence[f"{name}.waiting_peak_mib"], lab.measurement.REGIMES[name].waiting_mib
        at_most(f"scans read and not yet trained on, {name}", waiting, bound, "MiB")


@check(points=1)
def test_the_next_batch_is_ready(evidence, lab):
    """While a batch is trained on, others read: at least the next one is there, and the trainer reads none itself."""
    settled(evidence)
    for name in NAMES:
        at_least(f"scans ahead after the first batch, {name}", evidence[f"{name}.ahead"], lab.measurement.BATCH)
        itself = evidence[f"{name}.read_by_trainer"]
        at_most(f"scans that the trainer's own thread reads in an epoch, {name}", itself, lab.measurement.BATCH)


@check(points=2)
def test_copies_do_not_hold_up_the_host(evidence, inputs, lab):
    """At least 95 % of the bytes go to the card from pinned memory, without the host waiting for the copy."""
    for name in NAMES:
        moved, freely = evidence[f"{name}.moved_bytes"], evidence[f"{name}.moved_without_waiting_bytes"]
        at_least(f"share moved without waiting, {name}", freely / max(moved, 1), 0.95)
        values = sum(volume.size for volume in delivered(evidence, inputs, lab, name))
        at_least(f"bytes per value moved without waiting, {name}", freely / max(values, 1), 1.5)  # 12 bits at the least


@check(points=1)
def test_every_scan_once_in_an_order_of_the_generator(evidence, lab):
    """Each epoch brings every scan once, in fours that the generator alone draws anew, whatever the scans are."""
    scans, four, orders = lab.measurement.SCANS, lab.measurement.BATCH, {}
    for name in NAMES:
        epochs = len(lab.measurement.REGIMES[name].thickness)
        orders[name] = [evidence[f"{name}.ids"][evidence[f"{name}.epoch"] == e] for e in range(epochs)]
        complete = sum(np.array_equal(np.sort(order), np.arange(scans)) for order in orders[name])
        equal(f"epochs with every scan once, {name}", complete, epochs)
        fours = [min(four, scans - start) for start in range(0, scans, four)]
        equal(f"batches of four but for the last, {name}", evidence[f"{name}.batches"].tolist() == fours * epochs, True)
        next_ones = [*orders[name][1:], np.arange(scans)]
        same = max(float(np.mean(a == b)) for a, b in zip(orders[name], next_ones, strict=True))
        at_most(f"share of scans in the same place again, {name}", same, 0.5)
    first, (again, other) = orders["resampled"][0], orders["mixed"]  # from one seed, the same seed, another one
    equal("same seed, same batches of other scans", same_batches(first, again, four), True)
    equal("another seed, same batches", same_batches(again, other, four), False)


@check(points=1)
def test_values_are_exact(evidence, inputs, lab):
    """Each scan arrives in float32 with the values that the dataset has at that epoch, and nothing but zeros after."""
    for name in NAMES:
        equal(f"dtype, {name}", evidence[f"{name}.dtypes"], "float32")
        equal(f"largest value after a scan's end, {name}", evidence[f"{name}.padding"], 0.0)
        wanted = [lab.measurement.digest(volume) for volume in delivered(evidence, inputs, lab, name)]
        at_most(f"scans that differ, {name}", int((evidence[f"{name}.digests"] != np.array(wanted)).sum()), 0)
    if "delayed.digests" in evidence:  # CUDA only: every copy starts late
        scans = inputs["scans"]["resampled"]
        wanted = [lab.measurement.digest(scans.volume(i, 1)) for i in evidence["delayed.ids"].tolist()]
        at_most("scans that differ, late copies", int((evidence["delayed.digests"] != np.array(wanted)).sum()), 0)


def same_batches(some: np.ndarray, others: np.ndarray, four: int) -> bool:
    """Whether two epochs have the same batches one after the other; how a batch is sorted does not matter."""
    parts = [np.split(order, range(four, len(order), four)) for order in (some, others)]
    return all(np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(*parts, strict=True))


def settled(evidence) -> None:
    """How far a loader is ahead means something only once it has come to rest."""
    if unsettled := sum(evidence[f"{name}.unsettled"] for name in NAMES):
        not_measurable(f"after {unsettled} batches the workers had not come to rest within seconds")


def delivered(evidence, inputs, lab, name: str):
    """Of every scan that arrived, in order, the values that the dataset has for it at that epoch."""
    thickness = lab.measurement.REGIMES[name].thickness
    for epoch, i in zip(evidence[f"{name}.epoch"].tolist(), evidence[f"{name}.ids"].tolist(), strict=True):
        yield inputs["scans"][name].volume(i, thickness[epoch])
