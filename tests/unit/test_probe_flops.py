"""The counter agrees with a count by hand, and counts where PyTorch's own raises."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from breakfix.probes.flops import flop_counter

ROWS, WIDTH = 8, 4
FORWARD = 2 * ROWS * WIDTH * WIDTH  # of one linear layer: a multiplication and an addition per weight and row


class Again(torch.autograd.Function):
    """A checkpoint written by hand: its backward computes forward again, and calls autograd.grad."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.save_for_backward(x)
        ctx.layer = layer
        return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(ctx.layer(x), (x, ctx.layer.weight), gradient)[0], None


def counted(run, device="cpu") -> int:
    x = torch.ones(ROWS, WIDTH, device=device, requires_grad=True)
    layer = nn.Linear(WIDTH, WIDTH, device=device)
    with flop_counter() as counter:
        run(layer, x).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_forward_and_two_products_of_backward(device):
    assert counted(lambda layer, x: layer(x), device) == 3 * FORWARD


def test_what_a_checkpoint_computes_again_counts():
    assert counted(lambda layer, x: checkpoint(nn.Sequential(layer, nn.GELU()), x, use_reentrant=True)) == 4 * FORWARD


def test_gradients_inside_backward_count():
    assert counted(lambda layer, x: nn.Sequential(nn.Identity(), _Wrapped(layer))(x)) == 4 * FORWARD


class _Wrapped(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return Again.apply(x, self.layer)
