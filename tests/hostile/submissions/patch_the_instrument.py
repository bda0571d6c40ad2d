# attack: replaces the counter of batches by one that always says one, and keeps every batch
# state: not measurable
import sys

import torch


def totals(batches):
    for module in [m for name, m in sys.modules.items() if name.startswith("breakfix_measure_")]:
        module._Alive.most = property(lambda self: 1, lambda self, value: None)
    kept = list(batches)
    return torch.stack([batch.double().sum(0) for batch in kept]).sum(0)
