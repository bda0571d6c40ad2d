"""What a training script puts on the wire: which collectives, how many bytes, and what they would cost on a link.

    log = traffic.count()                          # before init_process_group
    dist.init_process_group(traffic.BACKEND)       # in place of "gloo" or "nccl"
    ...
    start = len(log)
    train_step()
    print(traffic.table(log[start:]))

Two sources that know nothing of each other. `count` registers a process group that writes down what it is asked for
and hands it on; every group that names no other backend is one of these. `recording` reads PyTorch's own Flight
Recorder, which sees the collectives of every group of the process and needs no change to the script. What one of them
missed, `disagreement` says.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from breakfix.probes import _torch

BACKEND = "counted"  # for init_process_group, once count() has registered it
POINT_TO_POINT = frozenset({"send", "recv"})  # gloo's Flight Recorder leaves these out (2.14.1)


@dataclass(frozen=True)
class Collective:
    """One collective as this rank issued it; `bytes` are those of the tensors that it put in."""

    op: str  # PyTorch's name: "all_reduce", "broadcast", ...
    bytes: int
    dtype: str  # "float32"; "" where there is no tensor, as in a barrier


@dataclass(frozen=True)
class Link:
    """What joins the ranks. The figures are nominal, so all that is computed from them is a model."""

    name: str
    latency_s: float  # per collective between two ranks
    bytes_per_s: float  # in one direction


LINKS = (
    Link("400 Mbit/s Ethernet", latency_s=200e-6, bytes_per_s=50e6),
    Link("10 Gbit/s Ethernet", latency_s=50e-6, bytes_per_s=1.25e9),
    Link("400 Gbit/s InfiniBand", latency_s=20e-6, bytes_per_s=50e9),
    Link("PCIe 4.0 x16, 32 GB/s each way", latency_s=20e-6, bytes_per_s=32e9),
    Link("NVLink 4, 450 GB/s each way", latency_s=10e-6, bytes_per_s=450e9),
)


# ---------------------------------------------------------------------------------------------- the counting group


def count(inner: dict[str, str] | None = None) -> list[Collective]:
    """Register the backend "counted" and return the list that its groups will fill, one entry per collective.

    `inner` says who does the work for which device: without it gloo for the CPU and, where there is a GPU, NCCL for
    that. Two ranks on one GPU need {"cpu": "gloo", "cuda": "gloo"}, since NCCL refuses to share a card.
    """
    log: list[Collective] = []
    register(BACKEND, CountingGroup, inner, log)
    return log


def register(name: str, kind: type["CountingGroup"], inner: dict[str, str] | None, log: Any) -> None:
    """Register the backend `name`, whose groups are of `kind` and get `log`; `inner` as in count()."""
    inner = inner or ({"cpu": "gloo", "cuda": "nccl"} if torch.cuda.is_available() else {"cpu": "gloo"})

    def create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> CountingGroup:
        return kind(store, rank, size, timeout, inner, log)

    dist.Backend.register_backend(name, create, devices=list(inner))


class CountingGroup(dist.ProcessGroup):
    """A process group that logs each collective and hands it to the backend of its tensors' device."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        inner: dict[str, str],
        log: list[Collective],
    ):
        super().__init__(rank, size)
        self.log = log
        made = {name: _make(name, dist.PrefixStore(name, store), rank, size, timeout) for name in {*inner.values()}}
        self.inner = {device: made[name] for device, name in inner.items()}
        for device, name in inner.items():  # so that whatever is not overridden below finds a real backend
            _torch.register_backend(self, device, name, made[name])

    def getBackendName(self) -> str:
        return BACKEND

    def note(self, op: str, tensors: list[Tensor], args: tuple) -> None:
        """Write a collective down, with what this rank puts in, before it is handed on."""
        dtype = name_of(tensors[0].dtype) if tensors else ""
        self.log.append(Collective(op, sum(t.numel() * t.element_size() for t in tensors), dtype))

    def _hand_on(self, method: str, op: str, tensors: list[Tensor], args: tuple, kwargs: dict) -> Any:
        self.note(op, tensors, args)
        touched = list(_tensors(args))
        device = touched[0].device.type if touched else next(reversed(self.inner))
        return getattr(self.inner[device], method)(*args, **kwargs)


# ProcessGroup's methods, the op's usual name, and which argument holds what this rank puts in. Some were renamed in
# 2.14: both names are here, and those that this torch does not have are left out.
_METHODS = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce", 0),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "allgather": ("all_gather", 1),
    "allgather_coalesced": ("all_gather", 1),
    "_allgather_base": ("all_gather", 1),
    "all_gather_single": ("all_gather", 1),
    "allgather_into_tensor_coalesced": ("all_gather", 1),
    "all_gather_single_coalesced": ("all_gather", 1),
    "reduce_scatter": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1),
    "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all", 1),
    "all_to_all_single": ("all_to_all", 1),
    "gather": ("gather", 1),
    "gather_single": ("gather", 1),
    "scatter": ("scatter", 1),
    "send": ("send", 0),
    "recv": ("recv", 0),
    "recv_anysource": ("recv", 0),
    "barrier": ("barrier", 0),
}


def _make(name: str, store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    backend = dist.ProcessGroupNCCL if name == "nccl" else dist.ProcessGroupGloo
    return backend(store, rank, size, timeout)


def _counting(method: str, op: str, argument: int) -> Callable[..., Any]:
    def counted(self: CountingGroup, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on(method, op, list(_tensors(args[argument : argument + 1])), args, kwargs)

    return counted


for _method, (_op, _argument) in _METHODS.items():
    if hasattr(dist.ProcessGroup, _method):
        setattr(CountingGroup, _method, _counting(_method, _op, _argument))


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


# --------------------------------------------------------------------------------------- PyTorch's Flight Recorder


@contextmanager
def recording() -> Iterator[list[Collective]]:
    """Fill a list with the collectives that PyTorch's Flight Recorder saw inside the block, in whichever group.

    It is on by default and keeps the last 2000 (TORCH_FR_BUFFER_SIZE, read at the first collective). Raises
    RuntimeError where more than that took place.
    """
    before = {name: _last(entries) for name, entries in _torch.flight_recorders().items()}
    seen: list[Collective] = []
    yield seen
    for name, entries in _torch.flight_recorders().items():
        new = [e for e in entries if e["record_id"] > before.get(name, -1)]
        if new and new[0]["record_id"] != before.get(name, -1) + 1:
            raise RuntimeError(f"Flight Recorder kept only the last {len(new)} collectives: raise TORCH_FR_BUFFER_SIZE")
        seen += map(as_collective, new)


def _last(entries: list[dict]) -> int:
    return entries[-1]["record_id"] if entries else -1


def as_collective(entry: dict) -> Collective:
    """From an entry such as {"profiling_name": "gloo:all_reduce", "input_sizes": [[9]], "input_dtypes": ["Float"]}."""
    name = entry["profiling_name"].rpartition(":")[2].lstrip("_")  # NCCL writes "nccl:_all_gather_base"
    if "barrier" in name:  # NCCL makes an all-reduce of one number of it
        return Collective("barrier", 0, "")
    op = next((op for op in _COST if name.startswith(op)), name)
    dtypes = [_DTYPES[name] for name in entry["input_dtypes"]]
    size = dtypes[0].itemsize if dtypes else 0  # one collective has one dtype
    numbers = sum(math.prod(shape) for shape in entry["input_sizes"])
    return Collective(op, numbers * size, name_of(dtypes[0]) if dtypes else "")


_DTYPES = {
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float": torch.float32,
    "Double": torch.float64,
    "Bool": torch.bool,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
    "Float8_e4m3fn": torch.float8_e4m3fn,
    "Float8_e5m2": torch.float8_e5m2,
}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ------------------------------------------------------------------------------------------------ what it comes to


def bytes_by_dtype(collectives: Iterable[Collective]) -> dict[str, int]:
    """Bytes put in, per dtype."""
    totals: Counter[str] = Counter()
    for c in collectives:
        totals[c.dtype] += c.bytes
    return {dtype: total for dtype, total in sorted(totals.items()) if total}


def disagreement(counted: Iterable[Collective], recorded: Iterable[Collective]) -> str:
    """Where the counting group and the Flight Recorder differ, in words; "" if they saw the same bytes per dtype.

    Bytes and not entries are compared, since a backend may split one collective into several. Sends and receives are
    left aside: gloo's are not recorded.
    """
    ours, theirs = (bytes_by_dtype(c for c in source if c.op not in POINT_TO_POINT) for source in (counted, recorded))
    different = [
        f"{dtype}: counted {ours.get(dtype, 0)} bytes, recorded {theirs.get(dtype, 0)}"
        for dtype in sorted({*ours, *theirs})
        if ours.get(dtype, 0) != theirs.get(dtype, 0)
    ]
    return "; ".join(different)


def sent_bytes(collective: Collective, world: int) -> float:
    """Bytes that a rank sends for it, the mean over `world` ranks, by the algorithm that moves fewest.

    An all-reduce of B bytes takes 2(N-1)/N B: all but one's own share goes out once to be summed, and once as a sum.
    """
    return _COST[collective.op](world) * collective.bytes if collective.op in _COST else 0.0


_COST: dict[str, Callable[[int], float]] = {  # "reduce_scatter" before "reduce": names are found by their beginning
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: n - 1,  # its bytes are this rank's shard, which all others get
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: (n - 1) / n,  # all but one have to receive it, each from somebody
    "reduce": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "send": lambda n: 1.0,
    "recv": lambda n: 0.0,
}


def modelled_seconds(collectives: Iterable[Collective], world: int, link: Link) -> float:
    """Modelled, not measured: latency for each collective and transfer at full speed, with nothing overlapped.

    The latency is a tree's, which grows with the logarithm of the number of ranks; a ring's grows with the number.
    """
    latency = link.latency_s * math.ceil(math.log2(world))
    return sum(latency + sent_bytes(c, world) / link.bytes_per_s for c in collectives)


def table(collectives: Iterable[Collective]) -> str:
    """Lines such as "all_reduce float32: 2 collectives, 12.58 MB"."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for c in collectives:
        kinds.setdefault((c.op, c.dtype), []).append(c.bytes)
    return "\n".join(
        f"{op} {dtype}".strip() + f": {len(sizes)} collectives, {_size(sum(sizes))}"
        for (op, dtype), sizes in kinds.items()
    )


def _size(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 10_000 else f"{size} bytes"
