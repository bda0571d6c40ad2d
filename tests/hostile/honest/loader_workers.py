# honest: two loader workers, which share tensors over /dev/shm and semaphores
import torch
from torch.utils.data import DataLoader


def totals(batches):
    ones = DataLoader(torch.ones(8, 64), batch_size=4, num_workers=2)
    assert sum(batch.sum() for batch in ones) == 512
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.sum(0, dtype=torch.float64)
    return total
