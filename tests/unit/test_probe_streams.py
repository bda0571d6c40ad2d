"""The modelled streams against plain eager runs, a few races worked out by hand, and the rules of the allocator."""

import copy

import pytest
import torch
from torch import nn

from breakfix.probes.streams import ORDERS, LateCard


def on(card, values):
    """A tensor on the card, copied from memory that is not pinned: the host has waited for it."""
    return torch.tensor(values).to(card.device)


@pytest.mark.parametrize("order", ORDERS)
def test_one_stream_computes_what_eager_code_computes(order):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    x = torch.randn(5, 2, 6, 6)

    def work(model, x):
        y = model(x)
        y[1:3] += 1.0
        a, b = y.split([1, 2], dim=1)
        return torch.cat([a.expand(-1, 2), b.T.contiguous().T], dim=1).softmax(-1).double()

    with torch.no_grad():
        wanted = work(model, x)
        with LateCard(order) as card:
            there = card.put(copy.deepcopy(model))
            got = work(there, x.to(card.device)).cpu()
    torch.testing.assert_close(got, wanted)
    assert card.races == []


def test_inference_mode_and_values_that_decide():
    with LateCard() as card, torch.inference_mode():
        x = on(card, [3.0, -1.0, 2.0])
        assert x.sum().item() == 4.0
        assert bool((x > 0).any())
        assert x[x > 0].cpu().tolist() == [3.0, 2.0]
        assert torch.nn.functional.linear(x, torch.ones(2, 3, device=card.device)).tolist() == [4.0, 4.0]


def test_a_copy_that_does_not_block_is_not_there_yet():
    with LateCard() as card:
        x = on(card, [1.0, 2.0]) + 1.0
        host = x.to("cpu", non_blocking=True)
        assert host.is_pinned()
        early = host.tolist()
        torch.cuda.synchronize()
        assert host.tolist() == [2.0, 3.0]
        assert early != [2.0, 3.0]
    with LateCard() as card:
        assert (on(card, [1.0]) + 1.0).cpu().tolist() == [2.0], "one that blocks is"


def test_into_ordinary_memory_the_host_waits_whatever_it_is_told():
    with LateCard() as card:
        host = torch.empty(1)
        host.copy_(on(card, [1.0]) + 1.0, non_blocking=True)
        assert host.tolist() == [2.0]


def reads_early(card):
    host = (on(card, [1.0]) + 1.0).to("cpu", non_blocking=True)
    return host + 0.0


def reads_in_time(card):
    host = (on(card, [1.0]) + 1.0).to("cpu", non_blocking=True)
    torch.cuda.current_stream().record_event().synchronize()
    return host + 0.0


def uses_too_early(card):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.ones(1).pin_memory().to(card.device, non_blocking=True) * 2.0
    return x.cpu()


def uses_after_an_event(card):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.ones(1).pin_memory().to(card.device, non_blocking=True) * 2.0
    torch.cuda.current_stream().wait_event(side.record_event())
    return x.cpu()


def gives_memory_away(card, keep=lambda x: None):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.full((1,), 2.0).pin_memory().to(card.device, non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    keep(x)
    y = x + 0.0  # not run yet
    del x
    with torch.cuda.stream(side):
        torch.full((1,), 9.0).pin_memory().to(card.device, non_blocking=True)
    return y.cpu()


def keeps_memory(card):
    return gives_memory_away(card, keep=lambda x: x.record_stream(torch.cuda.current_stream()))


@pytest.mark.parametrize(
    ("wrong", "right", "order"),
    [
        (reads_early, reads_in_time, "late"),
        (uses_too_early, uses_after_an_event, "late"),
        (gives_memory_away, keeps_memory, "side first"),
    ],
)
def test_each_race_is_found_and_shows_in_an_order(wrong, right, order):
    for work, is_right in (wrong, False), (right, True):
        with LateCard(order) as card:
            value = card.host_reads(work(card)).item()
        assert (value == 2.0) == is_right
        assert (card.races == []) == is_right
        with LateCard("at once") as card:
            assert card.host_reads(work(card)).item() == 2.0, "as in a debugger, nothing is wrong"
    assert "test_probe_streams.py:" in str(_races(wrong)[0])


def _races(work):
    with LateCard() as card:
        work(card)
    return card.races


def test_memory_is_used_again_on_its_own_stream_only():
    with LateCard() as card:
        a = torch.zeros(1000, device=card.device)
        before = card.reserved
        del a
        with torch.cuda.stream(torch.cuda.Stream()):
            b = torch.zeros(1000, device=card.device)
        assert card.reserved == 2 * before
        c = torch.zeros(1000, device=card.device)
        assert card.reserved == 2 * before
        assert b.shape == c.shape


def test_what_may_run_side_by_side():
    with LateCard() as card:
        x, side = on(card, [1.0]), torch.cuda.Stream()
        card.tasks.clear()
        x + 1
        with torch.cuda.stream(side):
            x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x - 3
        torch.cuda.synchronize()
        x / 4
    add, mul, sub, div = card.tasks
    assert add.overlaps(mul)
    assert mul.overlaps(add)
    assert all(sub.comes_after(task) for task in (add, mul))
    assert not add.overlaps(sub)
    assert all(div.comes_after(task) for task in (add, mul, sub)), "the host waited for all before it launched this"


def test_waiting_by_asking_comes_to_an_end():
    with LateCard() as card:
        host = (on(card, [1.0]) + 1.0).to("cpu", non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        asked = 0
        while not done.query():
            asked += 1
        assert asked > 0
        assert (host + 0).tolist() == [2.0]
    assert card.races == []


def test_torch_is_itself_again_afterwards():
    before = torch.cuda.Stream, torch.cuda.current_stream, torch.Stream, vars(torch.Tensor).get("record_stream")
    with LateCard():
        assert torch.cuda.Stream is not before[0]
    assert before == (
        torch.cuda.Stream, torch.cuda.current_stream, torch.Stream, vars(torch.Tensor).get("record_stream")
    )  # fmt: skip
    assert torch.ones(2).sum().item() == 2.0
