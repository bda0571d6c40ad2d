# starter: test_values_are_right_in_every_order test_every_use_is_ordered test_memory_stays_small
"""The maps are the same whatever order the card chooses, and the card is kept as busy as before."""

import pytest

from breakfix.checks import at_least, at_most, check, equal

BOUNDS = {"cpu": 1e-4, "cuda": 1e-3}  # of float32 against float64


@pytest.fixture(scope="module")
def orders(lab, device):
    """The orders in which values were measured: of the model, or of the card that is there."""
    return lab.measurement.REAL if device.type == "cuda" else lab.measurement.ORDERS


@pytest.fixture(scope="module")
def slow(lab, device):
    """The order in which the card is behind the host all the time."""
    return "kernels late" if device.type == "cuda" else "late"


@pytest.fixture(scope="module")
def source(device):
    """Where a figure of the card is from."""
    return "measured" if device.type == "cuda" else "modelled"


@check(points=3)
def test_values_are_right_in_every_order(evidence, orders, device, source):
    """Every scan has its own map, however late a copy or a kernel is: a race that is won most of the time is still one."""
    for order in orders:
        at_most(f"batches with wrong maps, {order} ({source})", evidence[f"{order}.wrong"], 0)
        at_most(f"error of the maps, {order} ({source})", evidence[f"{order}.error"], BOUNDS[device.type])


@check(points=2)
def test_every_use_is_ordered(evidence, orders, source):
    """No memory is used on one stream, or by the host, while another may still write it: PyTorch's own checker says so."""
    at_most("unordered uses (PyTorch's checker, modelled streams)", evidence["late.races"], 0)
    equal("raised (modelled streams)", evidence["late.raised"], "")
    equal("threads started (modelled streams)", evidence["late.threads"], 0)
    at_most(
        f"batches with wrong maps in the worst order ({source})", max(evidence[f"{order}.wrong"] for order in orders), 0
    )


@check(points=2)
def test_copies_run_beside_the_model(evidence, lab, slow, source):
    """The copy of a batch may run while the batch before is worked on: that is what the second stream is for."""
    at_least(f"share of copies that may run beside the model ({source})", evidence[f"{slow}.overlapping"], 0.9)
    equal("scans of each call", evidence[f"{slow}.sizes"], lab.measurement.sizes())


@check(points=1)
def test_the_host_runs_ahead(evidence, lab, slow, source):
    """When the host waits for the maps of a batch, the next batch has been launched: the card never waits for the host."""
    share = evidence[f"{slow}.launched_ahead"]
    at_least(f"share of batches launched before the last one was waited for ({source})", share, 0.9)
    equal("scans of each call", evidence[f"{slow}.sizes"], lab.measurement.sizes())


@check(points=1)
def test_memory_stays_small(evidence, lab, slow, source):
    """Neither pinned memory nor the card fills with maps as the archive grows: pinned memory is kept for ever."""
    at_most(f"pinned memory ({source})", evidence[f"{slow}.pinned_kib"], lab.measurement.PINNED_KIB, "KiB")
    card = evidence[f"{slow}.card_kib"]
    at_most(f"memory of the card beside the model's ({source})", card, lab.measurement.CARD_KIB, "KiB")
    wanted = sum(lab.measurement.sizes())
    equal("maps", evidence[f"{slow}.shape"][:1], [wanted])


@check(points=1)
def test_every_scan_goes_through_once(evidence, lab, orders, device):
    """Each batch goes through the model once, whole and in order, and on a machine without a card too."""
    for order in (*orders, "cpu"):
        equal(f"raised, {order}", evidence[f"{order}.raised"], "")
        equal(f"scans of each call, {order}", evidence[f"{order}.sizes"], lab.measurement.sizes())
    at_most("batches with wrong maps, cpu", evidence["cpu.wrong"], 0)
    at_most("error of the maps, cpu", evidence["cpu.error"], BOUNDS["cpu"])
