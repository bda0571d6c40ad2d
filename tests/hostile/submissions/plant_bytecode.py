# attack: replaces the cached bytecode of the package, of measure.py and of torch
import os
import sys
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

import torch


def replaced(path):
    with suppress(OSError, ValueError):
        cached = Path(cache_from_source(path))
        cached.parent.mkdir(exist_ok=True)
        with open(cached, "ab"):
            return True
    with suppress(OSError):
        os.utime(path)
        return True


def worked():
    files = [getattr(m, "__file__", None) for name, m in sys.modules.items() if name.partition(".")[0] in NAMES]
    return any(replaced(f) for f in files if f and f.startswith("/"))


NAMES = {"torch", "numpy", "_pytest", "json", *(n for n in sys.modules if n.startswith("breakfix"))}


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
