# attack: keeps a copy of every batch in NumPy, where the counter of tensors does not see it
# state: not measurable
import numpy as np
import torch


def totals(batches):
    kept = [batch.numpy().copy() for batch in batches]
    return torch.from_numpy(sum(array.astype(np.float64).sum(0) for array in kept))
