"""TODO: measure the failure, in two regimes at least."""

import math

import torch

from breakfix.contract import function


def inputs(seed: int) -> dict:
    """TODO: everything secret that `seed` draws; the checks draw the same."""
    return {"generator": torch.Generator().manual_seed(seed)}


def measure(subject, seed: int, device: torch.device) -> dict:
    """TODO: run the subject on inputs(seed); numbers and arrays, 4 MiB at most, under dotted names."""
    function(subject, "@functions@")
    # TODO: call them, and return what the checks look at; nan passes no check
    return {"symptom": math.nan, "cause": math.nan, "difference": math.nan}
