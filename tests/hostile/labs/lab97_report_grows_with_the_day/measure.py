"""Measure lab97: the totals of two days, and how many batches were alive at a time."""

import weakref
from types import SimpleNamespace

import torch

from breakfix.contract import describe, expect, function

COLUMNS, ROWS = 64, 6144
REGIMES = {"even": [ROWS] * 16, "ragged": [ROWS] * 3 + [500]}  # rows of each batch, 1.5 MiB the whole ones
IDLE = SimpleNamespace(totals=lambda batches: torch.zeros(COLUMNS, dtype=torch.float64) + sum(0 for _ in batches))


def inputs(seed):
    """Of each regime the batches, made one after the other: a function without arguments."""
    return {name: lambda rows=rows: _batches(seed, rows) for name, rows in REGIMES.items()}


def measure(subject, seed, device):
    totals = function(subject, "totals(batches) -> Tensor")
    evidence = {}
    for name, batches in inputs(seed).items():
        alive = _Alive()
        found = totals(alive.count(batches()))
        expect(isinstance(found, torch.Tensor), "totals", "a tensor", describe(found))
        evidence |= {f"{name}.totals": found, f"{name}.held": alive.most}
    return evidence


def _batches(seed, rows):
    generator = torch.Generator().manual_seed(seed)
    for n in rows:
        yield torch.rand(n, COLUMNS, generator=generator)


class _Alive:
    """Counts the batches that are alive at a time."""

    def __init__(self):
        self.now = self.most = 0

    def count(self, batches):
        for batch in batches:
            self.now += 1
            self.most = max(self.most, self.now)
            weakref.finalize(batch, self._ended)
            yield batch

    def _ended(self):
        self.now -= 1
