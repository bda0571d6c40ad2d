# attack: searches for other submissions, the gradebook and the assignment's key
import os

import torch

WANTED = {"assignment.toml", "gradebook.sqlite", "roster.csv", "hostile_neighbour.py"}


def worked():
    for folder, folders, files in os.walk("/"):
        if folder == "/":
            folders[:] = [f for f in folders if f not in ("proc", "sys", "usr", "lib", "lib64")]
        folders[:] = [f for f in folders if f != "site-packages"]
        if WANTED & set(files):
            return True
    return False


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
