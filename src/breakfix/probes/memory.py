"""How many bytes a training step needs on a card, counted storage by storage, and who holds them at the peak.

    with Card("cuda") as card:              # "cpu" works too; "meta" counts a model of any size without allocating it
        model, optimizer = build()
        for batch in batches:
            train_step(model, optimizer, batch)
            card.end_step()
    print(card.report())

With a `budget` it refuses what would not fit, as a full card does, with a `torch.OutOfMemoryError`.

Counted: every storage that an operator returns while the card is entered. Not counted: workspaces inside a kernel,
fragmentation, NumPy arrays, what threads other than yours and backward's make, and what was there before, until you
`add` it. Compiled functions run eagerly. A refused operator has already run: the machine must be able to hold it once.
"""

import contextlib
import mmap
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from breakfix.probes import _torch

MIB = 2**20
NOT_THE_CALLER = (str(Path(torch.__file__).parent), __file__)


@dataclass(slots=True)
class Block:
    """One live storage: its size as the card rounds it, what it is for, and a reference that says when it died."""

    bytes: int
    kind: str
    alive: weakref.ref


@dataclass(frozen=True)
class Moment:
    """An instant of a card: bytes in use (for a refusal also those asked for), where the program was, who held them."""

    bytes: int
    step: int
    phase: str  # "backward", "optimizer" (inside its step()) or "forward" (everything else)
    op: str
    line: str  # file and line of the caller; empty where a thread of autograd's own had none
    blocks: tuple[Block, ...] = ()

    @property
    def held(self) -> dict[str, int]:
        """Bytes by kind: parameters, buffers, gradients, optimizer state, activations, temporaries, kept."""
        kinds = Counter()
        for block in self.blocks:
            kinds[block.kind] += block.bytes
        return dict(kinds.most_common())

    def __str__(self):
        held = ", ".join(f"{kind} {size / MIB:.1f}" for kind, size in self.held.items())
        return f"{self.bytes / MIB:.1f} MiB in step {self.step}, {self.phase}, {self.op}, {self.line} ({held})"


class Card(_torch.dispatch_mode()):
    """Counts the storages of one type of device, each rounded up to `block` bytes as CUDA's allocator does.

    `peak` and every one of `refusals` is a Moment; `timeline` has (operator, bytes) wherever the bytes changed.
    While the card is entered, optimizers choose on this device what they would choose on CUDA. Tensors that no module
    or optimizer owns are `activations` if made in forward, else `temporaries`; those that outlive a step are `kept`.
    """

    def __init__(self, device: str | torch.device, budget: int | None = None, block: int = 512):
        super().__init__()
        self.device, self.budget, self.block = torch.device(device).type, budget, block
        self.ops, self.step, self.refusals = 0, 0, []
        self.peak, self.timeline = Moment(0, 0, "forward", "", ""), deque([(0, 0)], maxlen=1_000_000)
        self._bytes, self._live, self._dead = 0, {}, deque()  # by id of the storage: its Block, and the ids of the dead
        self._owners = weakref.WeakSet()  # modules and optimizers whose tensors can be told apart
        self._phase, self._stepping, self._lock = "forward", False, threading.Lock()

    def __enter__(self):
        self._undo = contextlib.ExitStack()
        self._undo.enter_context(_torch.foreach_default_on(self.device))
        self._undo.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        self._undo.callback(register_optimizer_step_post_hook(self._after_step).remove)
        return super().__enter__()

    def __exit__(self, *error):
        self._name(*self._owners)
        self._undo.close()
        return super().__exit__(*error)

    @property
    def in_use(self) -> int:
        """Bytes that are alive now."""
        self._bury()
        return self._bytes

    def add(self, *things: nn.Module | Optimizer | Tensor) -> None:
        """Count what was made before the card was entered, and know it by name from now on."""
        self._owners.update(thing for thing in things if not isinstance(thing, Tensor))
        refused = self._count("add", [t for thing in things for t, _ in _own(thing)])
        self._name(*self._owners)
        if refused:
            raise refused

    def end_step(self) -> None:
        """Close a training step: the next operator belongs to the next one."""
        self._stepping = False
        self._name(*self._owners)
        self._bury()
        for block in self._live.values():
            if block.kind in ("activations", "temporaries"):
                block.kind = "kept"
        self.step += 1

    def report(self) -> str:
        """The peak and every refusal in words, a line each."""
        return "\n".join([f"peak {self.peak}", *(f"refused {moment}" for moment in self.refusals)])

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(wrapper, "__tensor_flatten__") for wrapper in types):
            return NotImplemented  # a DTensor or quantized tensor unwraps itself first; then its plain tensors come by
        out = func(*args, **(kwargs or {}))
        if refused := self._count(func.name(), out):
            del out
            try:
                raise refused
            finally:
                del refused  # a frame that holds its own exception is a cycle: it would keep tensors alive
        return out

    def _count(self, op: str, out) -> torch.OutOfMemoryError | None:
        """Book the storages that an operator made or resized; if they don't fit, book none and return the refusal."""
        with self._lock:  # on CUDA backward runs on threads of its own
            self._bury()
            self._turn("optimizer" if self._stepping else "backward" if _torch.in_backward() else "forward")
            self.ops += 1
            sizes = {s: -(-s.nbytes() // self.block) * self.block for s in self._storages(out)}
            more = {s: size - self._booked(s) for s, size in sizes.items() if size != self._booked(s)}
            wanted = self._bytes + sum(more.values())
            if more and self.budget is not None and wanted > max(self.budget, self._bytes):
                return self._refuse(op, wanted)
            for storage in more:
                self._book(storage, sizes[storage])
            self._log(wanted)
            if wanted > self.peak.bytes:
                self.peak = self._moment(op, wanted)

    def _storages(self, out) -> Iterator[torch.UntypedStorage]:
        if isinstance(out, list | tuple):
            for item in out:
                yield from self._storages(item)
        elif isinstance(out, Tensor) and out.device.type == self.device and out.layout is torch.strided:
            yield out.untyped_storage()

    def _booked(self, storage: torch.UntypedStorage) -> int:
        return self._live[id(storage)].bytes if id(storage) in self._live else 0

    def _book(self, storage: torch.UntypedStorage, size: int) -> None:
        kind = "activations" if self._phase == "forward" else "temporaries"
        # It may die on any thread and at any moment, so all that its reference does is one atomic append.
        key, dead = id(storage), self._dead
        self._live[key] = Block(size, kind, weakref.ref(storage, lambda _: dead.append(key)))

    def _bury(self) -> None:
        """Take what has died since the last operator off the books."""
        while self._dead:
            block = self._live.pop(self._dead.popleft(), None)
            self._log(self._bytes - (block.bytes if block else 0))

    def _log(self, size: int) -> None:
        if size != self._bytes:
            self._bytes = size
            self.timeline.append((self.ops, size))

    def _refuse(self, op: str, wanted: int) -> torch.OutOfMemoryError:
        self._name(*self._owners)
        moment = self._moment(op, wanted)
        self.refusals.append(moment)
        self.timeline += [(self.ops, wanted), (self.ops, self._bytes)]
        return torch.OutOfMemoryError(
            f"{self.device} card out of memory in step {self.step}, {moment.phase}, {op}, {moment.line}: tried to "
            f"allocate {(wanted - self._bytes) / MIB:.2f} MiB with {self._bytes / MIB:.2f} MiB of its "
            f"{self.budget / MIB:.2f} MiB in use"
        )

    def _moment(self, op: str, size: int) -> Moment:
        return Moment(size, self.step, self._phase, op, _line(), tuple(self._live.values()))

    def _turn(self, phase: str) -> None:
        if phase != self._phase == "backward" and not self._stepping:
            self._name(*self._owners)
        self._phase = phase

    def _name(self, *owners: nn.Module | Optimizer) -> None:
        """Tell parameters, gradients and state apart while they are where their owner keeps them."""
        self._bury()  # or the id of a dead storage could be taken for that of a new one
        for tensor, kind in (owned for owner in owners for owned in _own(owner)):
            for storage in self._storages(tensor):
                if id(storage) in self._live:
                    self._live[id(storage)].kind = kind

    def _before_step(self, optimizer, args, kwargs):
        self._owners.add(optimizer)
        self._name(optimizer)
        self._stepping = True

    def _after_step(self, optimizer, args, kwargs):
        self._name(optimizer)
        self._stepping = False


def resident_bytes() -> int:
    """Bytes of this process that are in memory now; 0 where the kernel does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * mmap.PAGESIZE if path.exists() else 0


def _own(owner: nn.Module | Optimizer | Tensor) -> Iterator[tuple[Tensor, str]]:
    """The tensors of a module or an optimizer with their kinds."""
    if isinstance(owner, Tensor):
        yield owner, "activations"
        return
    if isinstance(owner, Optimizer):
        parameters = [p for group in owner.param_groups for p in group["params"]]
        states = [value for state in owner.state.values() for value in state.values() if isinstance(value, Tensor)]
        yield from ((value, "optimizer state") for value in states)
    else:
        parameters = owner.parameters()
        yield from ((buffer, "buffers") for buffer in owner.buffers())
    for p in parameters:
        yield p, "parameters"
        if p.grad is not None:
            yield p.grad, "gradients"


def _line() -> str:
    """File and line of the innermost frame that is neither torch's nor this file's."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith(NOT_THE_CALLER):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""
