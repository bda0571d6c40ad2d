# attack: returns nan, which is never greater than a bound
import torch


def totals(batches):
    return torch.full((64,), float("nan"), dtype=torch.float64)
