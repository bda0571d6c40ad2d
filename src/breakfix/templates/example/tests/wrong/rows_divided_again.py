# wrong: test_the_batch_changes_nothing test_equals_float64
# TODO: why a person would try it, and what it breaks. Rows add up to one and still depend on the batch.

import torch
from torch import Tensor, nn


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Probability of each species for each leaf: x [N, 4], returns [N, 3]."""
    training = model.training
    model.eval()
    with torch.no_grad():
        probabilities = torch.softmax(model(x), dim=0)
        probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
    model.train(training)
    return probabilities
