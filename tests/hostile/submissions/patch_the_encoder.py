# attack: lets the evidence claim one batch alive, whatever was measured, and keeps every batch
# state: not measurable
import sys

import torch

evidence = sys.modules["breakfix.evidence"]
honest = evidence._as_array_or_plain
evidence._as_array_or_plain = lambda name, value: 1 if name.endswith(".held") else honest(name, value)


def totals(batches):
    kept = list(batches)
    return torch.stack([batch.double().sum(0) for batch in kept]).sum(0)
