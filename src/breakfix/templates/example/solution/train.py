# TODO: the starter with the fix and nothing else changed.

import torch
from torch import Tensor, nn


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Probability of each species for each leaf: x [N, 4], returns [N, 3]."""
    training = model.training
    model.eval()
    with torch.no_grad():
        probabilities = torch.softmax(model(x), dim=-1)
    model.train(training)
    return probabilities
