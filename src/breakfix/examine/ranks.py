"""What goes to the other ranks: collectives and bytes per step, and gradients that are sent too often."""

import sys
from collections import Counter
from typing import Any

import torch
from torch import nn

from breakfix.examine.events import Probe
from breakfix.examine.findings import LIKELY, NOTE, Finding
from breakfix.examine.lines import NOWHERE, Line, own_line

KEPT = 2000  # collectives: as many as PyTorch's Flight Recorder keeps


class Ranks(Probe):
    """Reads PyTorch's Flight Recorder at the end, and asks each DDP module whether its backward pass will send."""

    name = "collectives"

    def __init__(self, watch):
        super().__init__(watch)
        self.sending = 0  # forward passes of a DDP module after which gradients are sent
        self.line: Line = NOWHERE

    def called(self, module: nn.Module, inputs, grad: bool) -> None:
        if grad and type(module).__name__ == "DistributedDataParallel" and module.training:
            self.sending += module.require_backward_grad_sync
            self.line = own_line() if self.line == NOWHERE else self.line

    def step_ended(self, optimizer, line: Line) -> None:
        if self.watch.rank is None and torch.distributed.is_available() and torch.distributed.is_initialized():
            self.watch.rank, self.watch.world = str(torch.distributed.get_rank()), torch.distributed.get_world_size()

    def findings(self) -> list[Finding]:
        each = self.sending / self.watch.steps if self.watch.steps > 1 else 0.0
        if each < 1.9:
            return []
        sent = self._per_step()
        told = f"{each:.1f} backward passes per step each send all gradients: "
        told += f"{sent['count']:.0f} collectives and {sent['bytes'] / 1e3:,.0f} kB per step"
        rank = LIKELY if each > 2.5 else NOTE  # two losses may each have their own pass
        return [Finding("sync-per-micro-batch", rank, told, self.line, {"passes_per_step": each})]

    def figures(self) -> dict[str, Any]:
        calls = self._calls()
        if not calls:
            return {}
        told = {
            str(c.number): [repr(c.signature), f"{c.op} {list(c.shapes)}, {c.line}"] for c in calls if c.group == "0"
        }
        ops = dict(Counter(c.op for c in calls))
        return {"collectives": {**self._per_step(calls), "ops": ops, "default_group": told}}

    def _per_step(self, calls=None) -> dict[str, float]:
        calls, steps = self._calls() if calls is None else calls, max(1, self.watch.steps)
        return {"count": len(calls) / steps, "bytes": sum(c.bytes for c in calls) / steps, "kept": len(calls) < KEPT}

    def _calls(self) -> list:
        if "torch.distributed.distributed_c10d" not in sys.modules or not torch.distributed.is_available():
            return []
        from breakfix.probes import collectives

        return collectives.recorded()
