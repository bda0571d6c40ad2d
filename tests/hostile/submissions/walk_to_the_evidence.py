# attack: overwrites what measure() has gathered, found by walking its frames
# state: not measurable
import sys

import torch


def totals(batches):
    frame = sys._getframe(1)
    kept = list(batches)
    frame.f_locals["alive"].most = 1
    frame.f_locals["evidence"].update({f"{name}.held": 1 for name in ("even", "ragged")})
    return torch.stack([batch.double().sum(0) for batch in kept]).sum(0)
