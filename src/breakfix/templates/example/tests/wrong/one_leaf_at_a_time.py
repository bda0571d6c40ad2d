# wrong: test_equals_float64
# TODO: why a person would try it, and what it breaks. Without a batch nothing depends on it: every answer is 1.

import torch
from torch import Tensor, nn


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Probability of each species for each leaf: x [N, 4], returns [N, 3]."""
    training = model.training
    model.eval()
    with torch.no_grad():
        probabilities = torch.cat([torch.softmax(model(leaf), dim=0) for leaf in x.split(1)])
    model.train(training)
    return probabilities
