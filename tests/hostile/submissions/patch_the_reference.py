# attack: replaces the inputs by zeros in its own process, so that zero would be right
import sys

import torch

torch.rand = lambda *shape, **_: torch.zeros(*shape)


def totals(batches):
    module = next(m for name, m in sys.modules.items() if name.startswith("breakfix_measure_"))
    module._batches = lambda seed, rows: (torch.zeros(n, 64) for n in rows)
    module.inputs = lambda seed: {name: lambda: [] for name in module.REGIMES}
    return sum(batch.double().sum(0) for batch in batches)
