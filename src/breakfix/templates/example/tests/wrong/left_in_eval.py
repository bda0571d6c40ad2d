# wrong: test_the_model_stays_as_it_was
# TODO: why a person would try it, and what it breaks. One line less: training goes on without dropout.

import torch
from torch import Tensor, nn


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Probability of each species for each leaf: x [N, 4], returns [N, 3]."""
    model.eval()
    with torch.no_grad():
        return torch.softmax(model(x), dim=-1)
