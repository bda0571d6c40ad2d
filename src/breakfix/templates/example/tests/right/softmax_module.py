# right: TODO: what it does and what it costs. The module instead of the function; costs nothing.

import torch
from torch import Tensor, nn


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Probability of each species for each leaf: x [N, 4], returns [N, 3]."""
    training = model.training
    model.eval()
    with torch.no_grad():
        probabilities = nn.Softmax(dim=-1)(model(x))
    model.train(training)
    return probabilities
