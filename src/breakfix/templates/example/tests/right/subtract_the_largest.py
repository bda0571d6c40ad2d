# right: TODO: what it does and what it costs. The formula by hand, kept in range; costs three lines.

import torch
from torch import Tensor, nn


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Probability of each species for each leaf: x [N, 4], returns [N, 3]."""
    training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(x)
        powers = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
        probabilities = powers / powers.sum(dim=-1, keepdim=True)
    model.train(training)
    return probabilities
