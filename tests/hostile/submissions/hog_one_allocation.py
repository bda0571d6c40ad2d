# attack: asks for more memory at once than any bound allows
import torch


def totals(batches):
    return torch.ones(1 << 33, dtype=torch.float64)
