# attack: switches dispatch modes off around its work, so that an instrument built on them sees nothing
# state: not measurable
import torch
from torch.utils._python_dispatch import _disable_current_modes


def totals(batches):
    kept = []
    with _disable_current_modes():
        for batch in batches:
            kept.append(batch.clone())
    return torch.stack([batch.double().sum(0) for batch in kept]).sum(0)
