"""Late errors against the rule of a queue: the line that waits is blamed, and only where an index is out of range."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from breakfix.probes.late import LateError, LateErrors


def step(labels):
    """A training step; the lines that were reached."""
    torch.manual_seed(0)
    model, reached = nn.Conv2d(3, 3, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = F.cross_entropy(model(torch.rand(2, 3, 4, 4)), labels)
    reached.append("cross_entropy")
    loss.backward()
    reached.append("backward")
    optimizer.step()
    reached.append("step")
    try:
        reached.append(loss.item())
    except LateError as error:
        reached.append(error.operator)
    return reached


def test_on_the_cpu_the_line_itself_raises():
    with pytest.raises(IndexError):
        step(torch.full((2, 4, 4), 3))


def test_the_line_that_asks_for_a_value_raises():
    with LateErrors():
        assert step(torch.full((2, 4, 4), 3)) == ["cross_entropy", "backward", "step", "nll_loss2d_forward"]


def test_without_a_wrong_index_nothing_changes():
    labels = torch.full((2, 4, 4), 2)
    with LateErrors():
        found = step(labels)
    assert found == step(labels)


@pytest.mark.parametrize(
    ("wrong", "operator"),
    [
        (lambda: F.embedding(torch.tensor([7]), torch.ones(3, 2)), "embedding"),
        (lambda: torch.ones(3)[torch.tensor([5])], "index"),
        (lambda: F.nll_loss(torch.zeros(2, 3), torch.tensor([0, -1])), "nll_loss_forward"),
    ],
)
def test_every_kernel_that_checks_an_index(wrong, operator):
    with LateErrors() as late:
        result = wrong()
        assert late.failed == operator
        with pytest.raises(LateError):
            bool((result > 0).all())


def test_whatever_is_asked_afterwards_raises():
    with LateErrors():
        F.embedding(torch.tensor([7]), torch.ones(3, 2))
        with pytest.raises(LateError):
            torch.ones(1).item()
        with pytest.raises(LateError):
            torch.ones(1).item()


def test_other_errors_come_at_once():
    with LateErrors(), pytest.raises(RuntimeError, match="mat1"):
        torch.ones(2, 3) @ torch.ones(2, 3)
