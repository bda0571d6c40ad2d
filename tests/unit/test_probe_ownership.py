"""The ownership probe against facts of another kind: gradients that arrive, weights that move, names in a file."""

import copy
import math

import pytest
import torch
from torch import nn

from breakfix.probes.ownership import leaves, ownership


class Listed(nn.Module):
    """Layers that it registers, lists and hides."""

    def __init__(self, hold=list):
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 5), nn.Linear(5, 2)
        self.stages = [self.enter, self.leave]  # registered already
        self.hidden = hold([nn.Linear(5, 5), nn.Linear(5, 5)])
        self.more = {"scale": nn.Parameter(torch.ones(5)), "unused": nn.Linear(3, 3)}

    def forward(self, x):
        x = self.enter(x) * self.more["scale"]
        for layer in self.hidden:
            x = layer(x).tanh()
        return self.leave(x)


def loss_of(model):
    return model(torch.ones(3, 4)).square().mean()


def everything(model):
    """All the tensors that Listed computes with, by hand."""
    layers = [model.enter, model.leave, *model.hidden]
    return [model.more["scale"], *(p for layer in layers for p in layer.parameters())]


def test_leaves_are_the_tensors_that_get_a_gradient():
    """The independent source is backward itself."""
    model = Listed()
    loss = loss_of(model)
    found = {id(t) for t in leaves(loss)}
    loss.backward()
    candidates = [*everything(model), *model.more["unused"].parameters()]
    assert found == {id(p) for p in candidates if p.grad is not None}
    assert len(found) == len(list(leaves(loss))) == 9


def test_unregistered_are_the_names_that_the_file_lacks():
    """The independent source is the state_dict, with the layers in a list and in a ModuleList."""
    model = Listed()
    owned = ownership(loss_of(model), model)
    assert set(owned.unregistered) == {
        "more['scale']", *(f"hidden[{i}].{name}" for i in (0, 1) for name in ("weight", "bias"))
    }  # fmt: skip
    assert owned.unregistered_share == pytest.approx((5 + 2 * 30) / (5 + 2 * 30 + 25 + 12))
    known = Listed(nn.ModuleList)
    gained = known.state_dict().keys() - model.state_dict().keys()
    assert {name.replace("[", ".").replace("]", "") for name in owned.unregistered} - {"more.'scale'"} == gained
    assert set(ownership(loss_of(known), known).unregistered) == {"more['scale']"}


def test_unowned_and_orphans_against_what_a_step_moves():
    """The independent source is which tensors a step of the optimizer moves."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.1)
    old = model[2]
    model[2] = nn.Linear(4, 3)
    owned = ownership(loss_of(model), model, optimizer)
    assert set(owned.unowned) == {"2.weight", "2.bias"}
    assert [id(t) for t in owned.orphans.values()] == [id(p) for p in old.parameters()]
    before = copy.deepcopy(model.state_dict())
    loss_of(model).backward()
    optimizer.step()
    still = {name for name, value in model.state_dict().items() if torch.equal(value, before[name])}
    assert still == set(owned.unowned)


def test_a_head_trained_alone_is_not_stale():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    owned = ownership(loss_of(model), model, torch.optim.SGD(model[1].parameters(), lr=1.0))
    assert set(owned.unowned) == {"0.weight", "0.bias"}
    assert not owned.orphans


def test_frozen_unused_and_several_optimizers():
    model = nn.ModuleDict({"used": nn.Linear(4, 2), "unused": nn.Linear(4, 2)})
    model["used"].bias.requires_grad_(False)
    weight, others = model["used"].weight, list(model["unused"].parameters())
    owned = ownership(loss_of(model["used"]), model, torch.optim.SGD([weight]), torch.optim.Adam(others))
    assert set(owned.unreached) == {"unused.weight", "unused.bias"}
    assert not owned.unregistered
    assert not owned.unowned
    assert not owned.orphans


def test_a_sound_trainer_and_a_loss_without_a_graph():
    model = nn.Sequential(nn.Linear(4, 4), nn.RNN(4, 2))
    loss = model[1](model[0](torch.ones(3, 4)))[0].sum()
    assert "every parameter of the loss" in str(ownership(loss, model, torch.optim.Adam(model.parameters())))
    bare = ownership(torch.zeros(()), model, torch.optim.Adam(model.parameters()))
    assert math.isnan(bare.unregistered_share)
    assert len(bare.unreached) == len(list(model.parameters()))
    leaf = torch.zeros((), requires_grad=True)
    assert list(leaves(leaf)) == [leaf]


def test_tied_weights_are_one():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    owned = ownership(model(torch.ones(1, 3)).sum(), model, torch.optim.SGD(model.parameters()))
    assert len(owned.reached) == 1
    assert not owned.unowned


def test_nothing_is_changed():
    model = Listed()
    before = copy.deepcopy(model.state_dict())
    ownership(loss_of(model), model, torch.optim.SGD(model.parameters()))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_the_same():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).cuda()
    loss = model(torch.ones(3, 4, device="cuda")).sum()
    assert set(ownership(loss, model, torch.optim.SGD(model[1].parameters())).unowned) == {"0.weight", "0.bias"}
