"""The placement probe against known truth: modules that are moved for real, gradients of the engine, bytes by hand."""

import copy
import types
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from breakfix.probes.placement import Crossings, FakeCard, left_behind, reached, walk_backward


class Untidy(nn.Module):
    """Tensors that it registers, and tensors in every place where one can be forgotten."""

    def __init__(self):
        super().__init__()
        self.known, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("table", torch.ones(4), persistent=False)
        self.plain = torch.ones(2, 3)
        self.listed = [nn.Linear(4, 4, bias=False), self.known]
        self.named = {"a": torch.ones(5), "b": (torch.ones(6),)}
        self.scale = partial(torch.mul, torch.ones(7))
        hidden = torch.ones(8)
        self.closure = lambda x: x * hidden
        self.config = types.SimpleNamespace(weights=torch.ones(9))
        self.number = torch.tensor(2.0)


LEFT = {
    "plain", "listed[0].weight", "named['a']", "named['b'][0]", "scale.args[0]", "closure.hidden", "config.weights",
}  # fmt: skip


def test_left_behind_is_what_a_real_move_leaves():
    """`meta` is a device to which modules can really be moved here."""
    model = Untidy()
    assert {s.path for s in left_behind(model)} == LEFT
    moved = copy.deepcopy(model).to("meta")
    assert {path for path, t in reached(moved) if t.ndim and not t.is_meta} == LEFT
    assert all(t.device.type == "cpu" for _, t in reached(model)), "the model itself stays where it is"


def test_a_model_that_moves_all_it_has_leaves_nothing():
    class Tidy(Untidy):
        def _apply(self, fn, recurse=True):
            super()._apply(fn, recurse)
            self.plain = fn(self.plain)
            return self

    assert {s.path for s in left_behind(Tidy())} == LEFT - {"plain"}
    assert left_behind(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))) == []


def test_bytes_and_the_way_are_told():
    (stray,) = [s for s in left_behind(Untidy()) if s.path == "plain"]
    assert stray.nbytes == 24
    assert str(stray) == "plain: float32 [2, 3] stays on cpu, 24 bytes"


@pytest.mark.parametrize(
    "ask",
    [
        lambda card, host: card @ host,
        lambda card, host: card + host,
        lambda card, host: F.linear(card, host),
        lambda card, host: torch.where(host > 0, card, card),
        lambda card, host: card.masked_fill(host > 0, 0.0),
        lambda card, host: torch.cat([card, host]),
        lambda card, host: host[torch.zeros(2, dtype=torch.int64, device=card.device)],
        lambda card, host: card + torch.ones(4, 4, device="cuda:1"),
    ],
)
def test_two_devices_raise(ask):
    with FakeCard() as fake, pytest.raises(RuntimeError):
        ask(torch.ones(4, 4, device=fake.device), torch.ones(4, 4))


def test_one_number_of_the_cpu_is_fine_and_values_are_not_to_be_had():
    with FakeCard() as card:
        x = torch.ones(4, device=card.device)
        assert (x + torch.tensor(1.0)).device == card.device
        assert (x * 2.0).device == card.device
        with pytest.raises(RuntimeError):
            x.sum().item()


class Branches(nn.Module):
    """Broadcasting, an operator with several outputs, a tensor used twice, two dtypes, one output unused."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.bias = nn.Linear(4, 6), nn.Conv1d(3, 2, 1), nn.Parameter(torch.randn(6))
        self.wide = nn.Parameter(torch.randn(6).double())

    def forward(self, x):
        x = F.layer_norm((self.first(x) + self.bias) * self.wide, [6]).float()
        a, b, _ = x.view(-1, 3, 2).unbind(2)[0].unsqueeze(1).expand(-1, 3, 3).unbind(1)
        y = self.second(torch.stack([a, b, a * b], dim=1)).softmax(-1)
        values, _ = y.max(dim=-1)
        return F.dropout(values, 0.0).square().sum() + x.std()


def branches():
    torch.manual_seed(0)
    return Branches(), torch.randn(5, 4)


def test_backward_by_hand_gives_the_engines_gradients():
    model, x = branches()
    x.requires_grad_()
    model(x).backward()
    wanted = [p.grad.clone() for p in (*model.parameters(), x)]
    for p in (*model.parameters(), x):
        p.grad = None
    loss = model(x)
    walk_backward((loss,), (torch.ones(()),), False, False, (), True, accumulate_grad=True)
    for p, gradient in zip((*model.parameters(), x), wanted, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-12, atol=1e-12)
    before = x.grad.clone()
    loss = model(x)
    (got,) = walk_backward((loss,), (torch.ones(()),), False, False, (x,), True, accumulate_grad=False)
    torch.testing.assert_close(got, wanted[-1])
    assert torch.equal(x.grad, before), "grad() leaves .grad alone"


def test_a_step_on_the_fake_card_has_the_shapes_and_the_device_of_a_real_one():
    model, x = branches()
    with FakeCard("cuda:1") as card:
        moved, on_card = card.copy(model).to(card.device), card.copy(x).to(card.device)
        optimizer = torch.optim.SGD(moved.parameters(), lr=0.1)
        moved(on_card).backward()
        optimizer.step()
        for mine, other in zip(model.parameters(), moved.parameters(), strict=True):
            assert (other.grad.shape, other.grad.dtype, other.grad.device) == (mine.shape, mine.dtype, card.device)
        assert {p.device.type for p in moved.cpu().parameters()} == {"cpu"}
    model(x).backward()  # the engine is back
    assert all(p.grad is not None for p in model.parameters())


def test_copies_are_counted_with_their_bytes_and_their_line():
    x, table = torch.ones(5, 4), torch.ones(3, 4)
    with FakeCard() as card:
        fake = card.copy(x)
        fake.to(card.device)
        line = card.events[-1].line
        card.copy(table).to(card.device, torch.float64)
        torch.tensor([1.0, 2.0], device=card.device)
        torch.ones(9, device=card.device)[torch.tensor([0, 1, 2])]
        fake.to(card.device).cpu()
        fake.to(torch.float64)  # on the CPU: a result in float64, and no copy
    assert [(e.nbytes, e.devices) for e in card.of("copied")] == [
        (80, "cpu to cuda:0"), (96, "cpu to cuda:0"), (8, "cpu to cuda:0"), (24, "cpu to cuda:0"),
        (80, "cpu to cuda:0"), (80, "cuda:0 to cpu"),
    ]  # fmt: skip
    assert line.startswith("test_probe_placement.py:")
    assert [(e.nbytes, e.devices) for e in card.of("float64")] == [(96, "cuda:0"), (160, "cpu")]
    assert "copied 1 times, 80 bytes, cuda:0 to cpu" in card.report()


def test_float64_is_seen_on_real_tensors_too():
    mean = torch.from_numpy(np.ones(4))
    with Crossings() as log:
        (torch.ones(3, 4) - mean).float()
    assert [e.nbytes for e in log.events] == [96]
    with Crossings() as log:
        torch.ones(3, 4) - mean.float()
    assert log.report() == "nothing was copied between devices, nothing read, nothing in float64"


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with FakeCard() as card:
        moved = card.copy(model).to(card.device)
        assert moved[0].weight is moved[1].weight
        assert moved[0].weight.device == card.device
