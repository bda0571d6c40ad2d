"""The virtual card: what it counts, what it refuses, and that two sources that know nothing of it agree with it."""

import gc
import json
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from breakfix.probes.memory import Card

MIB = 2**20


def perceptron(width: int = 256) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.LayerNorm(width))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, steps: int = 2, after=lambda: None):
    for _ in range(steps):
        out = model(x)
        cross_entropy(out, torch.zeros(len(out), dtype=torch.long, device=out.device)).backward()
        optimizer.step()
        optimizer.zero_grad()
        after()


def size(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


# ------------------------------------------------------------------------------------------------- what it counts


def test_counts_storages_and_not_views_or_in_place_results():
    with Card("cpu") as card:
        x = torch.zeros(256)
        assert card.in_use == 1024
        y = x.view(16, 16)[3:].t()
        x.add_(1).relu_()
        x.detach()
        assert card.in_use == 1024
        del x
        assert card.in_use == 1024, "the view still holds the storage"
        del y
        assert card.in_use == 0
    assert card.peak.bytes == 1024
    assert max(size for _, size in card.timeline) == 1024


def test_rounds_each_storage_up_and_follows_a_resize():
    with Card("cpu") as card:
        x = torch.zeros(3)
        assert card.in_use == 512
        x.resize_(200)
        assert card.in_use == 1024
    with Card("cpu", block=1) as exact:
        x = torch.zeros(3)
        assert exact.in_use == 12


def test_counts_one_type_of_device_only():
    with Card("meta") as card:
        torch.zeros(1000)
        x = torch.zeros(1000, device="meta")
        assert card.in_use == 4096
        del x


def test_what_was_there_before_counts_once_it_is_added():
    model, x = perceptron(), torch.zeros(8, 256)
    optimizer = torch.optim.AdamW(model.parameters())
    with Card("cpu", block=1) as card:
        card.add(model, optimizer, x)
        card.add(model)
        assert card.in_use == size(model) + 8 * 256 * 4
        assert card.peak.held == {"parameters": size(model), "activations": 8 * 256 * 4}


def test_unwraps_a_tensor_subclass_and_counts_what_is_inside():
    from torch.testing._internal.two_tensor import TwoTensor

    with Card("cpu") as card:
        x = TwoTensor(torch.zeros(1024), torch.zeros(1024))
        y = x * 2
        assert card.in_use == 4 * 4096
        del x, y


def test_a_storage_that_dies_on_another_thread_leaves_the_books():
    with Card("cpu") as card:
        held = [torch.zeros(1024) for _ in range(100)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert card.in_use == 0


def test_a_reference_cycle_is_counted_until_it_is_collected():
    with Card("cpu") as card:
        cycle = [torch.zeros(1024)]
        cycle.append(cycle)
        del cycle
        assert card.in_use == 4096
        gc.collect()
        assert card.in_use == 0


# ------------------------------------------------------------------------------------- where it was, and who held what


def test_adamw_holds_five_times_its_parameters_where_cuda_would():
    """Parameters, gradients, two states, and one more for the square roots of all parameters at once."""
    with Card("cpu") as card:
        model = perceptron()
        train(model, torch.optim.AdamW(model.parameters()), torch.zeros(2, 256), after=card.end_step)
    held = {kind: bytes / size(model) for kind, bytes in card.peak.held.items()}
    assert held["parameters"] == pytest.approx(1, rel=0.01)
    assert held["gradients"] == pytest.approx(1, rel=0.01)
    assert held["optimizer state"] == pytest.approx(2, rel=0.01)
    assert held["temporaries"] == pytest.approx(1, rel=0.01)
    assert (card.peak.step, card.peak.phase, card.peak.op) == (0, "optimizer", "aten::_foreach_sqrt")
    assert card.peak.line.startswith("test_probe_memory.py:")


def test_the_default_is_put_back_when_the_card_is_left():
    def peak(card):
        with card:
            model = perceptron()
            train(model, torch.optim.AdamW(model.parameters()), torch.zeros(2, 256))
        return card.peak

    assert peak(Card("cpu")).op == "aten::_foreach_sqrt"
    elsewhere = peak(Card("meta"))  # a card of another type leaves the CPU's default alone
    assert elsewhere.bytes == 0
    model = perceptron()
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        train(model, torch.optim.AdamW(model.parameters()), torch.zeros(2, 256))
    assert "aten::_foreach_sqrt" not in {event.key for event in prof.key_averages()}


def test_gradients_keep_their_name_when_the_optimizer_runs_inside_backward():
    with Card("cpu") as card:
        model = nn.Sequential(perceptron(), perceptron(), perceptron())
        optimizers = {p: torch.optim.AdamW([p]) for p in model.parameters()}

        def update(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
        for _ in range(2):
            model(torch.ones(2, 256)).sum().backward()
            card.end_step()
    assert card.peak.bytes < 4 * size(model), "never all gradients at once"
    assert card.peak.held["gradients"] > 0


def test_names_are_not_taken_from_the_dead():
    """An optimizer's step counters are on the CPU, and a new storage may be where a dead one was."""
    with Card("meta") as card, torch.device("meta"):
        model = torchvision.models.vit_b_16()
        train(model, torch.optim.AdamW(model.parameters()), torch.zeros(2, 3, 224, 224), after=card.end_step)
    assert card.peak.held["optimizer state"] == pytest.approx(2 * size(model), rel=0.01)
    assert card.peak.held["temporaries"] == pytest.approx(size(model), rel=0.01)


def test_what_outlives_its_step_is_kept():
    with Card("cpu") as card:
        losses = [torch.zeros(1024)]
        card.end_step()
        x = torch.zeros(2048)
        assert card.peak.held == {"kept": 4096, "activations": 8192}
        del losses, x


# ------------------------------------------------------------------------------------------------- what it refuses


def test_a_budget_refuses_and_books_nothing():
    with Card("cpu", budget=3 * 4096) as card:
        x = torch.zeros(2048)
        with pytest.raises(torch.OutOfMemoryError, match=r"tried to allocate 0\.01 MiB"):
            torch.zeros(2048)
        assert card.in_use == 8192
        y = torch.zeros(1024)
        x.add_(1)
        assert card.peak.bytes == 3 * 4096
    assert [(m.bytes, m.step, m.phase, m.op) for m in card.refusals] == [(16384, 0, "forward", "aten::zeros")]
    assert "refused 0.0 MiB in step 0, forward, aten::zeros, test_probe_memory.py:" in card.report()
    del x, y


def test_a_refusal_inside_backward_comes_out_of_backward():
    with Card("cpu") as card:
        x = torch.zeros(1024, requires_grad=True)
        y = (x.exp() * 2).sum()
        card.budget = card.in_use + 512
        with pytest.raises(torch.OutOfMemoryError):
            y.backward()
    assert card.refusals[0].phase == "backward"


def test_a_refusal_keeps_nothing_alive():
    def attempt():
        x = torch.zeros(1024)
        return torch.cat([x, x])

    gc.disable()
    try:
        with Card("cpu", budget=8192) as card:
            with pytest.raises(torch.OutOfMemoryError):
                attempt()
            assert card.in_use == 0
    finally:
        gc.enable()


def test_two_cards_in_turn_do_not_mix():
    with Card("cpu") as first:
        x = torch.zeros(1024)
    with Card("cpu") as second:
        y = x + 1
    assert (first.in_use, second.in_use) == (4096, 4096), "x was there before the second card"
    del x, y
    assert (first.in_use, second.in_use) == (0, 0)


# ---------------------------------------------------------------------------------------- against independent sources


def allocator_peak(run, folder) -> int:
    """The highest total that PyTorch's own CPU allocator reported while `run` ran, less what it began with."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        run()
    prof.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    sizes = [
        event["args"]["Bytes"] for event in sorted(events, key=lambda e: e.get("ts", 0)) if event["name"] == "[memory]"
    ]
    highest = now = 0
    for change in sizes:
        now += change
        highest = max(highest, now)
    return highest


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("network", ["perceptron", "resnet18"])
def test_agrees_with_the_allocator_to_one_percent(network, foreach, tmp_path):
    build, x = {
        "perceptron": (lambda: perceptron(512), torch.randn(32, 512)),
        "resnet18": (lambda: torchvision.models.resnet18(num_classes=10), torch.randn(4, 3, 96, 96)),
    }[network]

    def run():
        model = build()
        train(model, torch.optim.AdamW(model.parameters(), foreach=foreach), x)

    run()  # what a first run keeps for later is neither's business
    with Card("cpu", block=1) as card:
        run()
    assert card.peak.bytes == pytest.approx(allocator_peak(run, tmp_path), rel=0.01)


@pytest.mark.parametrize("foreach", [None, False])
def test_meta_counts_what_the_cpu_needs(foreach):
    peaks = []
    for device in ("cpu", "meta"):
        with Card(device) as card, torch.device(device):
            model = torchvision.models.resnet18(num_classes=10)
            optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
            train(model, optimizer, torch.zeros(4, 3, 64, 64), after=card.end_step)
        peaks.append(card.peak.bytes)
    assert peaks[1] == pytest.approx(peaks[0], rel=0.01)


def test_counts_a_batch_that_this_machine_could_not_hold():
    with Card("meta") as card, torch.device("meta"):
        model = torchvision.models.resnet50()
        train(model, torch.optim.AdamW(model.parameters()), torch.zeros(4096, 3, 224, 224), 1)
    assert card.peak.bytes > 300 * 2**30


RESIDENT = """
    import ctypes, os, sys, torch
    from torch import nn

    ctypes.CDLL(None).mallopt(-3, 64 << 10)  # M_MMAP_THRESHOLD: a freed tensor leaves the resident size at once
    torch.set_num_threads(1)

    def run(width, foreach):
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        for _ in range(2):
            model(torch.ones(4, width)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    for foreach in True, False:
        run(64, foreach)  # load what is loaded on first use
    for foreach in True, False:
        for width in 256, 1024:
            if os.fork() == 0:
                run(width, foreach)
                os._exit(0)
            print(os.wait4(-1, 0)[2].ru_maxrss * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident sizes are exact with glibc's mallopt only")
def test_agrees_with_the_resident_size_seen_from_outside():
    """A wider model adds to its process what it adds to the card: the difference of two runs leaves all else out."""
    printed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RESIDENT)], capture_output=True, text=True, check=True
    )
    resident = [int(line) for line in printed.stdout.split()]
    counted = []
    for foreach in True, False:
        for width in 256, 1024:
            with Card("meta") as card, torch.device("meta"):
                model = nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))
                train(model, torch.optim.AdamW(model.parameters(), foreach=foreach), torch.ones(4, width))
            counted.append(card.peak.bytes)
    for small in 0, 2:
        assert resident[small + 1] - resident[small] == pytest.approx(counted[small + 1] - counted[small], rel=0.01)
