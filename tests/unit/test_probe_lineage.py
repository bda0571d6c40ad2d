"""What kept values hold of a graph: counted by hand, by PyTorch's own hooks, and by the memory that comes back."""

import gc
from collections import deque, namedtuple
from functools import partial

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from breakfix.probes import _torch
from breakfix.probes.lineage import Growth, Held, alive, graph, held, held_by_place, places
from breakfix.probes.memory import Card


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(16, 16, batch_first=True)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return self.cell(x, state)[0]


MODELS = {
    "perceptron": (perceptron, (10, 32)),
    "recurrent": (Recurrent, (4, 6, 16)),
    "attention": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16)),
    "convolution": (torchvision.models.resnet18, (2, 3, 64, 64)),
}


# ------------------------------------------------------------------------------------------------ against other sources


def test_a_graph_counted_by_hand():
    """exp and tanh save their results, 48 bytes each; sum saves a shape; the leaf has a node of its own."""
    x = torch.randn(3, 4, requires_grad=True)
    loss = x.exp().tanh().sum()
    assert sorted(node.name().rpartition(":")[2] for node in graph([loss])) == [
        "AccumulateGrad", "ExpBackward0", "SumBackward0", "TanhBackward0",
    ]  # fmt: skip
    assert held(loss) == Held(nodes=4, saved_bytes=96, bytes=100)


def test_backward_lets_go_of_what_was_saved_and_not_of_the_nodes():
    x = torch.randn(3, 4, requires_grad=True)
    loss = x.exp().tanh().sum()
    loss.backward()
    assert held(loss) == Held(nodes=4, saved_bytes=0, bytes=4)
    assert held(loss.detach()) == Held(nodes=0, saved_bytes=0, bytes=4)
    assert held(loss.item()) == Held()


@pytest.mark.parametrize("name", MODELS)
def test_what_hooks_see_saved_is_what_is_found(name):
    build, shape = MODELS[name]
    model, x, packed = build(), torch.randn(shape), {}

    def pack(tensor: Tensor) -> Tensor:
        packed[id(tensor.untyped_storage())] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x).square().mean()
    for tensor in (x, *model.parameters(), *model.buffers()):
        packed.pop(id(tensor.untyped_storage()), None)
    loss = model(x).square().mean()
    assert held(loss, beside=(model, x)).saved_bytes == sum(storage.nbytes() for storage in packed.values())


@pytest.mark.parametrize("name", MODELS)
def test_what_is_held_is_what_comes_back_when_it_is_dropped(name):
    build, shape = MODELS[name]
    with Card("cpu", block=1) as card:
        model, x = build(), torch.randn(shape)
        kept = [model(x).square().mean() for _ in range(2)]
        gc.collect()
        found, before = held(kept, beside=(model, x)), card.in_use
        kept.clear()
        assert found.bytes == before - card.in_use > 1000


@pytest.mark.parametrize(
    ("after_backward", "retain_graph"), [(True, False), (True, True), (False, False)], ids=["freed", "retained", "none"]
)
def test_growth_is_the_growth_of_memory(after_backward, retain_graph):
    """Losses kept after backward cost four bytes a step; kept without it, or with the graph retained, all of it."""
    with Card("cpu", block=1) as card:
        model, x, losses, growth, in_use = perceptron(), torch.randn(10, 32), [], None, []
        growth = Growth(beside=(model, x))
        for _ in range(8):
            loss = model(x).square().mean()
            if after_backward:
                loss.backward(retain_graph=retain_graph)
            losses.append(loss)
            growth.look({"losses": losses})
            in_use.append(card.in_use)
    assert growth.rate.bytes == (in_use[7] - in_use[3]) / 4
    assert growth.rate.bytes == (4 if after_backward and not retain_graph else 5444)
    assert growth.rate.nodes == 7  # without the four of the parameters, which all steps share


# --------------------------------------------------------------------------------------------------------- who holds it


def test_each_place_by_itself_and_what_two_share_once_in_all():
    x = torch.randn(100, requires_grad=True)
    common = x.exp()
    values = {"a": [common.sum()], "b": common.tanh(), "c": [1.0, torch.ones(3)]}
    each = held_by_place(values)
    assert each == {"['a'][*]": Held(3, 400, 404), "['b']": Held(3, 800, 800)}
    assert held(values) == Held(4, 800, 816)


def test_the_report_names_what_grows_and_leaves_out_what_does_not():
    model, x, kept, state = perceptron(), torch.randn(10, 32), {"outputs": [], "loss": [], "first": None}, None
    growth = Growth(beside=(model, x))
    for _ in range(6):
        out = model(x)
        loss = out.square().mean()
        loss.backward()
        kept["outputs"].append(model(x))
        kept["loss"].append(loss)
        kept["first"] = state = out if state is None else state
        growth.look(kept)
    lines = growth.report().splitlines()
    assert lines[0].startswith("each step adds ")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["['outputs'][*]", "['loss'][*]"]
    assert "0 bytes saved" in lines[2]


def test_what_comes_into_being_once_is_not_growth():
    x, growth = torch.randn(5, requires_grad=True), Growth()
    for step in range(6):
        growth.look([] if step < 2 else x.exp())
    assert growth.rate == Held()
    assert growth.looks[-1].nodes == 2
    assert Growth().rate == Held()


Pair = namedtuple("Pair", "mean spread")


class Slotted:
    __slots__ = ("kept", "unset")

    def __init__(self, kept):
        self.kept = kept

    def method(self):
        return self.kept


def test_places_are_found_in_containers_attributes_closures_and_partials():
    t = [torch.full((1,), float(i)) for i in range(9)]
    model = nn.Linear(2, 2, bias=False)
    model.state = t[0]

    def closure():
        return t[1], later  # not assigned yet when it is looked at

    values = {
        "list": [t[2], t[3]],
        4: t[4],
        "deque": deque([Pair(t[5], None)]),
        "model": model,
        "slots": Slotted(t[6]).method,
        "partial": partial(print, t[7]),
        "closure": closure,
    }
    found = {place: tensor for place, tensor in places(values)}
    assert found["['list'][*]"] is t[3]
    assert found["[*]"] is t[4]
    assert found["['deque'][*].mean"] is t[5]
    assert found["['model'].state"] is t[0]
    assert found["['model'].weight"] is model.weight
    assert found["['slots'].__self__.kept"] is t[6]
    assert found["['partial'].args[*]"] is t[7]
    assert found["['closure'].t[*]"] is t[8], "all others have a shorter name"
    later = 0


def test_a_cycle_and_a_long_chain_end():
    cycle = [torch.ones(1)]
    cycle.append(cycle)
    assert len(list(places(cycle))) == 1
    y = torch.ones(1, requires_grad=True)
    for _ in range(5000):  # deeper than Python's own stack
        y = y.exp()
    assert held(y).nodes == 5001


def test_a_gradient_with_a_graph_is_found_where_it_lies():
    w = nn.Parameter(torch.ones(3))
    [w.grad] = torch.autograd.grad(w.exp().sum(), w, create_graph=True)
    assert held_by_place({"w": w}).keys() == {"['w'].grad"}
    w.grad = None


def test_alive_finds_a_tensor_that_only_a_frame_knows():
    def holding():
        kept = torch.ones(3, requires_grad=True).exp()
        yield kept.shape

    before = held(alive()).nodes
    generator = holding()
    next(generator)
    assert held(alive()).nodes == before + 2
    generator.close()
    assert held(alive()).nodes == before


# ----------------------------------------------------------------------------------------------- what saved tensors are


def test_hooks_on_saved_tensors_are_not_run():
    model, calls = perceptron(), []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    x = torch.randn(10, 32, requires_grad=True)
    out = checkpoint(model, x, use_reentrant=False)
    found = held(out, beside=x)
    assert found.nodes == 10
    assert found.saved_bytes == 0, "nothing is kept but the input"
    assert calls == [1], "and nothing was computed again"
    out.sum().backward()
    assert calls == [1, 1]


def test_what_a_hook_has_packed_is_counted_as_it_lies():
    x = torch.randn(100, requires_grad=True)

    def pack(tensor: Tensor) -> tuple:
        return "half", tensor.detach().half()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[1].float()):
        y = x.exp()
    assert held(y).saved_bytes == 200


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        ctx.mask = torch.ones(50)
        return x.sum()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0] * ctx.mask


def test_a_function_of_ones_own_holds_what_it_saved_and_what_it_was_given():
    x = torch.randn(50, requires_grad=True)
    y = Keeps.apply(x)
    assert held(y).saved_bytes == 400
    y.backward()
    assert held(y).saved_bytes == 200, "an attribute of ctx is not let go of by backward"


def test_a_leaf_that_is_no_parameter_counts_and_a_whole_storage_does():
    data = torch.randn(1000)
    x = data[:10].requires_grad_()
    y = x * x
    assert held(y).saved_bytes == 4000
    assert held(y, beside=data).saved_bytes == 0


def test_sparse_and_wrapping_tensors_count_what_they_are_made_of():
    from torch.testing._internal.two_tensor import TwoTensor

    sparse = torch.eye(4).to_sparse()
    assert held(sparse).bytes == 4 * 2 * 8 + 4 * 4
    assert held(TwoTensor(torch.zeros(8), torch.zeros(8))).bytes == 64


def test_torch_still_says_what_a_node_has_saved():
    x = torch.randn(3, requires_grad=True)
    y = x.exp()
    [saved] = _torch.saved_by(y.grad_fn)
    assert saved.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    y.sum().backward()
    assert list(_torch.saved_by(y.grad_fn)) == []
    indexed = (x * 1)[[0, 1]]
    assert [list(t.shape) for t in _torch.saved_by(indexed.grad_fn)] == [[2]]
