"""Each read counts once, nothing else counts, and PyTorch's profiler counts the same."""

import threading

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torchmetrics import MeanMetric

from breakfix.probes.reads import Reads, _read_by_call, _read_by_operator

X, THREE, MASK = torch.arange(6.0), torch.tensor(3), torch.arange(6) > 2

READS = {
    "item": lambda: X[0].item(),
    "tolist": lambda: X.tolist(),
    "cpu": lambda: X.cpu(),
    "numpy": lambda: X.numpy(),
    "bool": lambda: bool(X[0]),
    "if": lambda: 1 if X.sum() > 2 else 0,
    "not": lambda: not X.sum(),
    "float": lambda: float(X[0]),
    "int": lambda: int(THREE),
    "an index of a list": lambda: [1, 2, 3, 4][THREE],
    "print": lambda: print(X),
    "str": lambda: str(X),
    "f-string": lambda: f"{X[0]:.3f}",
    "f-string without a format": lambda: f"{X}",
    "percent": lambda: "%.3f" % X[0],  # noqa: UP031
    "asarray": lambda: np.asarray(X),
    "nonzero": lambda: X.nonzero(),
    "torch.nonzero": lambda: torch.nonzero(X),
    "boolean index": lambda: X[MASK],
    "where with one argument": lambda: torch.where(MASK),
    "masked_select": lambda: X.masked_select(MASK),
    "unique": lambda: torch.unique(X),
    "equal": lambda: torch.equal(X, X),
    "in": lambda: 3 in X,
    "a tensor as an index": lambda: X[THREE],
    "allclose": lambda: torch.allclose(X, X),
}

NO_READS = {
    "arithmetic": lambda: (X + 1).exp().sum(),
    "shape": lambda: (len(X), X.shape[0], X.numel(), X.ndim, X.dtype),
    "detach and clone": lambda: X.detach().clone(),
    "where with three": lambda: torch.where(MASK, X, 0),
    "an index of several": lambda: X[torch.tensor([1, 2])],
    "a slice": lambda: X[1:3],
    "another dtype": lambda: X.to(torch.float64),
    "to the device": lambda: X.to(torch.device("cpu")),
    "a comparison": lambda: X > 2,
    "iterating": lambda: list(X),
    "clipping": lambda: torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(X)], 1.0),
}


@pytest.mark.parametrize("name", READS)
def test_each_read_counts_once(name):
    with Reads() as reads:
        READS[name]()
    assert reads.count == 1, str(reads)


@pytest.mark.parametrize("name", NO_READS)
def test_nothing_else_counts(name):
    with Reads() as reads:
        NO_READS[name]()
    assert reads.count == 0, str(reads)


def test_the_profiler_counts_the_same():
    def work():
        for i in range(7):
            x = torch.ones(3) * i
            if x.sum() > 4:
                x.mean().item()
            f"{x[0]:.2f}"

    with Reads() as reads:
        work()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        work()
    assert reads.count == sum(e.name == "aten::_local_scalar_dense" for e in profiled.events()) == 7 + 5 + 7


def test_training_itself_reads_nothing():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        optimizer = kind(model.parameters())
        with Reads() as reads:
            for _ in range(3):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(torch.ones(5, 4)), torch.tensor([0, 1, 0, 1, 1])).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        assert reads.count == 0, f"{kind.__name__}: {reads}"


def test_reads_in_backward_count():
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda gradient: gradient * gradient.norm().item())
    with Reads() as reads:
        x.sum().backward()
    assert reads.count == 1


def test_a_line_is_named_and_so_is_the_library_that_reads_there():
    with Reads() as reads:
        X.sum().item()
        MeanMetric().update(X[0])
    here, there = sorted(reads.lines, key=lambda line: line.via)
    assert (here.what, here.via) == ("item", "")
    assert here.at.startswith("test_probe_reads.py:")
    assert there.at.startswith("test_probe_reads.py:")
    assert there.via.startswith("aggregation.py:")
    assert reads.lines[here] == 1
    assert f"item at {here.at}" in str(reads)


def test_values_and_errors_are_what_they_were():
    with Reads():
        assert X[2].item() == 2.0
        assert f"{X[1]:.1f}" == "1.0"
        with pytest.raises(RuntimeError):
            X.item()
    with Reads() as reads:
        X[0].item()
    assert reads.count == 1, "an error inside a read left it open"


def test_it_ends_with_its_block_and_sees_its_own_thread():
    with Reads() as reads:
        thread = threading.Thread(target=X[0].item)
        thread.start(), thread.join()
    X[0].item()
    assert reads.count == 0


def test_other_devices_do_not_count():
    with Reads("cuda") if torch.cuda.is_available() else Reads("meta") as reads:
        X[0].item(), X.tolist(), torch.nonzero(X)
    assert reads.count == 0


def test_copies_to_the_host_are_told_from_copies_elsewhere():
    """What can be known of a card without one: tensors on "meta" stand in for those on it."""
    there, here = torch.ones(2, device="meta"), torch.ones(2)
    assert _read_by_call("to", (there, "cpu"), {}, "meta") == "to cpu"
    assert _read_by_call("to", (there,), {"device": torch.device("cpu")}, "meta") == "to cpu"
    assert _read_by_call("to", (there, here), {}, "meta") == "to cpu"
    assert _read_by_call("to", (there, torch.float64), {}, "meta") == ""
    assert _read_by_call("to", (there, "cpu"), {"non_blocking": True}, "meta") == ""
    assert _read_by_call("to", (here, "meta"), {}, "meta") == ""
    assert _read_by_operator("_to_copy", (there,), {"device": torch.device("cpu")}, "meta")
    assert not _read_by_operator("_to_copy", (there,), {"dtype": torch.float64}, "meta")
    assert _read_by_operator("copy_", (here, there), {}, "meta")
    assert not _read_by_operator("copy_", (here, there, True), {}, "meta")
    assert not _read_by_operator("copy_", (there, here), {}, "meta")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_reports_beside_it():
    x = torch.ones(3, device="cuda")
    with Reads("cuda") as reads:
        x.sum().item()
        x + 1
    assert reads.count == 1
    assert reads.syncs.total() == 1
    assert torch.cuda.get_sync_debug_mode() == 0
