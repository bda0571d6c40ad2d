"""What one of many ranks holds: bytes of shards, of what is gathered from them, and ranks that are not there.

    with RankCard("cuda") as card:                       # "cpu" works too
        trainer = build()
        for batch in batches:
            trainer.step(batch)
            card.end_step()
    print(card.report(), card.held)

    with simulated(1024) as log:                         # this process as one rank of 1024
        build().step(batch)

A RankCard is a `memory.Card` for ranks that shard. In a simulated group no collective waits or moves anything: sizes
are real and values are not. So what a rank would hold, and in `log` what it would send, can be counted on a laptop.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from breakfix.probes import _torch, memory, traffic

SIMULATED = "simulated"  # the backend's name


class RankCard(memory.Card):
    """A Card that sees into DTensors and follows storages that are emptied and filled again.

    `fully_shard` does both: parameters, gradients and state are DTensors around the rank's own shard, and the buffer
    that a block is gathered into stays the same storage, which is resized.
    """

    def __enter__(self):
        entered = super().__enter__()
        original = torch.UntypedStorage.resize_  # not an operator: PyTorch's own MemTracker puts a wrapper there too
        self._undo.callback(setattr, torch.UntypedStorage, "resize_", original)

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            self._resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize_
        return entered

    @property
    def held(self) -> dict[str, int]:
        """Bytes that are alive now, by kind: parameters, gradients, optimizer state, kept, ..."""
        self._name(*self._owners)
        kinds = Counter()
        for block in self._live.values():
            kinds[block.kind] += block.bytes
        return dict(kinds.most_common())

    def _name(self, *owners: nn.Module | Optimizer) -> None:
        # ZeroRedundancyOptimizer holds None for what is another rank's; the optimizer inside it has the state
        super()._name(*(o for o in owners if not isinstance(o, Optimizer) or None not in o.state.values()))

    def _resized(self, storage: torch.UntypedStorage) -> None:
        if storage.device.type == self.device:
            self._count("resize_", storage)

    def _storages(self, out: Any) -> Iterator[torch.UntypedStorage]:
        if isinstance(out, torch.UntypedStorage):
            yield out
        for storage in super()._storages(_torch.local_tensor(out)):
            if storage.device.type == self.device:  # a FakeTensor, by which DTensor thinks about shapes, has none there
                yield storage


# ------------------------------------------------------------------------------------------------- ranks that are not


class SimulatedGroup(traffic.CountingGroup):
    """One rank of many, without the others: a collective is logged, done at once, and leaves its output as it is."""

    def __init__(self, rank: int, size: int, devices: Collection[str], log: list[traffic.Collective]):
        dist.ProcessGroup.__init__(self, rank, size)
        self.log = log
        fake = _torch.fake_group(rank, size)
        self.inner = dict.fromkeys(devices, fake)
        for device in devices:
            _torch.register_backend(self, device, "custom", fake)

    def getBackendName(self) -> str:
        return SIMULATED

    def _hand_on(self, method: str, op: str, tensors: list[Tensor], args: tuple, kwargs: dict) -> Any:
        super()._hand_on(method, op, tensors, args, kwargs)
        return _torch.finished_work(args[0] if args else [])  # the fake group's has no result, which DDP asks for


def simulate(devices: tuple[str, ...] = ("cpu",)) -> list[traffic.Collective]:
    """Register the backend "simulated" and return the list that its groups will fill, one entry per collective."""
    log: list[traffic.Collective] = []

    def create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> SimulatedGroup:
        return SimulatedGroup(rank, size, devices, log)

    dist.Backend.register_backend(SIMULATED, create, devices=list(devices))
    return log


@contextmanager
def simulated(world: int, rank: int = 0, devices: tuple[str, ...] = ("cpu",)) -> Iterator[list[traffic.Collective]]:
    """Make this process one rank of `world`, of which no other is there; what it would send is in the list.

    For a process that is in no group. Shapes and bytes are those of a real group. Values are not: a sum over the ranks
    is this rank's own part, and what others would have sent is whatever the memory held.
    """
    log = simulate(devices)
    dist.init_process_group(SIMULATED, store=dist.HashStore(), rank=rank, world_size=world)
    try:
        yield log
    finally:
        dist.destroy_process_group()
