# wrong: test_equals_float64
# TODO: why a person would try it, and what it breaks. Each species by itself: they do not add up to one.

import torch
from torch import Tensor, nn


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Probability of each species for each leaf: x [N, 4], returns [N, 3]."""
    training = model.training
    model.eval()
    with torch.no_grad():
        probabilities = torch.sigmoid(model(x))
    model.train(training)
    return probabilities
