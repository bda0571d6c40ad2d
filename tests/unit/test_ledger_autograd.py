"""What claims/ledger.jsonl says about tensors and autograd, tried."""

import threading

import numpy as np
import pytest
import torch
from torch import nn


def test_no_grad_covers_everything_that_is_called():
    scale = nn.Parameter(torch.tensor(2.0))

    def deep(x, calls):
        return x * scale if not calls else deep(x, calls - 1)

    with torch.no_grad():
        for calls in (0, 1, 50):
            y = deep(torch.ones(3), calls)
            assert (y.requires_grad, y.grad_fn) == (False, None)
        kept = [deep(torch.ones(3), 1) for _ in range(1000)]
    assert all(y.grad_fn is None for y in kept)
    assert scale.grad is None


def test_no_grad_does_not_cover_another_thread():
    scale, seen = nn.Parameter(torch.tensor(2.0)), []
    with torch.no_grad():
        thread = threading.Thread(target=lambda: seen.append((scale * 1).requires_grad))
        thread.start()
        thread.join()
    assert seen == [True]


def test_what_the_two_advised_repairs_do():
    scale, x = nn.Parameter(torch.tensor(2.0)), torch.ones(3, requires_grad=True)
    assert (x.detach() * scale).requires_grad  # outside of the block the parameter is enough
    assert (x * torch.tensor(2.0)).requires_grad  # a plain scale, and a prediction with a graph


def test_inference_mode_is_stricter_than_no_grad():
    with torch.inference_mode():
        x = torch.ones(3)
        with torch.enable_grad():
            assert not (x * nn.Parameter(torch.ones(3))).requires_grad
    with torch.no_grad(), torch.enable_grad():
        assert (torch.ones(3) * nn.Parameter(torch.ones(3))).requires_grad
    with pytest.raises(RuntimeError):
        x.add_(1)
    with pytest.raises(RuntimeError):
        x * nn.Parameter(torch.ones(3))  # it would have to be saved for backward


def test_forward_hooks_fire_in_inference_mode_and_gradient_hooks_cannot_be_hung():
    layer, fired = nn.Linear(2, 2), []
    layer.register_forward_hook(lambda *_: fired.append(1))
    with torch.inference_mode():
        y = layer(torch.ones(1, 2))
    assert fired == [1]
    with pytest.raises(RuntimeError):
        y.register_hook(lambda g: g)


# --------------------------------------------------------------------------------------------- graphs and gradients


def nodes(tensor: torch.Tensor) -> int:
    """Nodes of the graph behind a tensor."""
    seen, todo = set(), [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [next_node for next_node, _ in node.next_functions]
    return len(seen)


def test_the_graph_follows_the_python_that_ran():
    w = torch.ones(2, requires_grad=True)

    def tree(x, depth):
        return x * w if not depth else tree(x * w, depth - 1) + tree(x + w, depth - 1)

    assert nodes(tree(torch.ones(2), 1)) < nodes(tree(torch.ones(2), 2)) < nodes(tree(torch.ones(2), 3))


def test_a_gradient_goes_through_an_inner_training_step():
    def inner(w):
        return w - 0.1 * torch.autograd.grad((w**3).sum(), w, create_graph=True)[0]

    w = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    (exact,) = torch.autograd.grad(inner(w) ** 2, w)
    near = [inner((w + e).detach().requires_grad_()).item() ** 2 for e in (1e-6, -1e-6)]
    assert exact.item() == pytest.approx((near[0] - near[1]) / 2e-6, rel=1e-6)


def test_a_symbol_is_all_that_can_be_printed_while_a_graph_is_made():
    printed = []

    def forward(x):
        y = x * 2
        printed.append(str(y))
        return y

    torch.fx.symbolic_trace(forward)
    forward(torch.ones(2))
    assert printed == ["Proxy(mul)", "tensor([2., 2.])"]


def test_requires_grad_on_the_tensor_is_enough():
    x = torch.ones(2, requires_grad=True)
    (3 * x).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_who_has_a_grad_fn_and_who_gets_a_gradient():
    w, constant = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0)
    middle = w * constant
    (middle * 2).backward()
    assert w.grad_fn is None
    assert constant.grad_fn is None
    assert middle.grad_fn is not None
    assert w.grad == 6
    assert constant.grad is None


def test_backward_of_a_vector_needs_an_argument():
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with pytest.raises(RuntimeError):
        (x * x).backward()
    (x * x).backward(torch.ones(3))
    assert x.grad.tolist() == [2, 4, 6]
    (x[:1] * 1).backward()  # one element counts as a scalar


def test_gradients_add_up():
    x = torch.tensor(1.0, requires_grad=True)
    for _ in range(2):
        (3 * x).backward()
    assert x.grad == 6


def change(w: torch.Tensor, how: str) -> None:
    if how == "data":
        w.data *= 10
    elif how == "detach":
        w.detach().mul_(10)
    else:
        with torch.no_grad():
            w.mul_(10)


@pytest.mark.parametrize("how", ["no_grad", "detach"])
def test_a_change_that_would_falsify_a_gradient_makes_backward_raise(how):
    w = torch.tensor(2.0, requires_grad=True)
    y = w * w
    change(w, how)
    with pytest.raises(RuntimeError):
        y.backward()


def test_data_silences_that_and_the_gradient_is_wrong():
    w = torch.tensor(2.0, requires_grad=True)
    y = w * w
    change(w, "data")
    y.backward()
    assert w.grad == 40  # at w = 2 it is 4


def test_clipping_a_weight_in_place_needs_no_grad():
    w = torch.tensor([1.0, -3.0], requires_grad=True)
    with pytest.raises(RuntimeError):  # an error, and nothing is changed
        w.clamp_(-1, 1)
    assert w.tolist() == [1, -3]
    with torch.no_grad():
        w.clamp_(-1, 1)
    (w * w).sum().backward()
    assert w.grad.tolist() == [2, -2]


def test_without_no_grad_bytes_are_kept_for_backward():
    layer, kept = nn.Linear(64, 64), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):
        layer(torch.randn(32, 64))
        with_graph = len(kept)
        with torch.no_grad():
            layer(torch.randn(32, 64))
    assert len(kept) == with_graph > 0


# ----------------------------------------------------------------------------------------------------------- tensors


def test_a_new_tensor_is_neither_pinned_nor_tracked():
    x = torch.tensor([1, 2, 3])
    assert (x.dtype, x.device.type, x.requires_grad, x.grad_fn) == (torch.int64, "cpu", False, None)
    assert not x.is_pinned()


def test_from_numpy_shares_and_tensor_copies():
    array = np.array([1.0, 2.0])
    shared, copied = torch.from_numpy(array), torch.tensor(array)
    array[0] = 9
    assert (shared[0].item(), copied[0].item()) == (9, 1)
    assert torch.from_numpy(np.ones(2, dtype=np.float32)).requires_grad_().requires_grad


def test_factories_make_what_they_say():
    assert torch.zeros(2, 3).abs().sum() == 0
    assert torch.ones(2, 3).sum() == 6
    assert 0.9 < torch.randn(10_000, generator=torch.Generator().manual_seed(0)).std() < 1.1


def test_nothing_moves_to_another_device_by_itself():
    assert torch.ones(1).device.type == "cpu"
    with torch.device("meta"):
        assert torch.ones(1).device.type == "meta"
    assert torch.device("cuda" if torch.cuda.is_available() else "cpu").type in ("cuda", "cpu")
    assert hasattr(torch.accelerator, "current_accelerator")


def test_eval_still_records_a_graph():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()
    x = torch.randn(4, 2)
    assert torch.equal(model(x), model(x))
    assert model(x).requires_grad
    model.train()
    torch.manual_seed(0)
    assert not torch.equal(model(torch.ones(64, 2)), model(torch.ones(64, 2)))
