"""Totals of a day, by column."""

import torch

COLUMNS = 64


def totals(batches):
    """The sum of each column over all batches, in float64."""
    total = torch.zeros(COLUMNS, dtype=torch.float64)
    for batch in batches:
        total += batch.sum(0, dtype=torch.float64)
    return total
