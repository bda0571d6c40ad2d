"""Code that uses CUDA streams, run without a card in the orders that a card is free to choose: a model.

    with LateCard("late", modules=[my_module]) as card:
        model = card.put(my_model)
        scores = my_module.predict(model, batches, card.device)
    print(scores)               # what the host would read if every stream were as late as it may be
    print(card.races)           # what PyTorch's own checker, torch.cuda._sanitizer, says of the same run

Tensors of the card are fake, and each has a twin on the CPU. A kernel or an asynchronous copy is put into the queue of
its stream and runs on the twins when somebody waits for it. Three orders:

    "at once"     each as soon as it is launched, as with CUDA_LAUNCH_BLOCKING=1
    "late"        nothing before the host waits for it
    "side first"  as late, and then the streams that nobody waited for run ahead of the one that somebody waits for

Code that is right gives the same values in all of them. The memory of a tensor that died goes to the next one of its
size on the stream that it was made on, as in PyTorch's allocator; record_stream delays that. Pinned memory is
`pinned.FakePinning`. Not modelled: priorities, several cards, graphs, and code that uses the card from several threads.
With CUDA use the real thing: TORCH_CUDA_SANITIZER=1, and a copy made slow by a kernel before it.
"""

import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from breakfix.probes import _torch
from breakfix.probes.pinned import FakePinning

ORDERS = ("at once", "late", "side first")
HOST = -1  # the host, as a stream of the checker
ROUND = 512  # bytes, as CUDA's allocator rounds
OURS = str(Path(__file__).parent)


@dataclass(eq=False)
class Mark:
    """A place in a stream: everything before it has run, once `done`."""

    stream: "Stream"
    done: bool = False


@dataclass(eq=False)
class Task:
    """A kernel or a copy that was launched: when, on which stream, and what it is certain to come after."""

    run: Callable[[], None]
    what: str
    stream: int
    number: int
    after: dict[int, int]  # of every stream the number of its last task that has ended before this one starts
    host_after: dict[int, int]  # the same of the host, when it launched this
    label: Any  # what the card's `label` said of it
    memory: set[int]  # where it reads and writes

    def comes_after(self, other: "Task") -> bool:
        """Whether `other` has certainly ended when this starts."""
        return self.after.get(other.stream, -1) >= other.number

    def overlaps(self, other: "Task") -> bool:
        """Whether the two may run at the same time."""
        return not self.comes_after(other) and not other.comes_after(self)


@dataclass(eq=False)
class Block:
    """Memory of the card, for as long as a tensor uses it; it belongs to the stream that it was made on."""

    base: Tensor
    stream: "Stream"
    used_on: set["Stream"] = field(default_factory=set)  # by record_stream


@dataclass(frozen=True)
class Race:
    """Two accesses to one memory that nothing orders, as PyTorch's checker found them."""

    access: str  # "read" or "write", the later one
    operator: str
    line: str
    before: str  # the operator of the earlier access
    before_line: str

    def __str__(self) -> str:
        later = f"{self.operator} ({self.access}, {self.line})"
        return f"{later} is not ordered after {self.before} ({self.before_line})"


class _Pinning(FakePinning):
    """Tells the address of what is pinned: whatever was there before has ended, or it would not be free."""

    def __init__(self, tell: Callable[[int], None]):
        super().__init__()
        self._tell = tell

    def pin(self, tensor: Tensor) -> Tensor:
        pinned = super().pin(tensor)
        if pinned is not tensor:
            self._tell(pinned.data_ptr())
        return pinned


class Stream:
    """What torch.cuda.Stream is to the code that uses it."""

    card: "LateCard"

    def __init__(self, device: Any = None, priority: int = 0, **_: Any):
        self.stream_id = self.cuda_stream = next(self.card._ids)
        self.device, self.device_index, self.priority = self.card.device, 0, priority
        self._queue: deque = deque()
        self._outer: list[Stream] = []
        self.card._streams.append(self)
        self.card._checker.stream_made(self.stream_id)

    def wait_event(self, event: "Event") -> None:
        """What comes on this stream waits for the event, as it was last recorded; the host does not."""
        if event._mark is not None:
            self._queue.append(event._mark)
            self.card._checker.waits(event._id, self.stream_id)
            self.card._launched()

    def wait_stream(self, stream: "Stream") -> None:
        """What comes on this stream waits for all that is on the other one by now; the host does not."""
        self.wait_event(stream.record_event())

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Note what is on this stream by now."""
        event = event or self.card.Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits for all that is on this stream."""
        self.card._run_stream(self)
        self.card._checker.host_waited_for_stream(self.stream_id)

    def query(self) -> bool:
        """Whether all that is on this stream has run."""
        if any(isinstance(item, Task) for item in self._queue):
            return self.card._meanwhile(self)
        self.synchronize()  # by which the host knows it
        return True

    def __enter__(self):
        self._outer.append(self.card.current)
        self.card.current = self
        return self

    def __exit__(self, *exception):
        self.card.current = self._outer.pop()


class Event:
    """What torch.cuda.Event is to the code that uses it; it measures no time."""

    card: "LateCard"

    def __init__(self, *_: Any, **__: Any):
        self._id, self._mark = next(self.card._ids), None
        self.card._checker.event_made(self._id)

    def record(self, stream: Stream | None = None) -> None:
        """Note what is on the stream by now."""
        stream = stream or self.card.current
        self._mark = Mark(stream)
        stream._queue.append(self._mark)
        self.card._checker.recorded(self._id, stream.stream_id)
        self.card._launched()

    def wait(self, stream: Stream | None = None) -> None:
        """What comes on the stream waits for the event."""
        (stream or self.card.current).wait_event(self)

    def synchronize(self) -> None:
        """The host waits for the event."""
        if self._mark is not None:
            self.card._run_until(self._mark)
            self.card._checker.host_waited_for_event(self._id)

    def query(self) -> bool:
        """Whether the event has come to pass."""
        if self._mark is not None and not self._mark.done:
            return self.card._meanwhile(self._mark.stream)
        self.synchronize()  # by which the host knows it
        return True

    def elapsed_time(self, other: "Event") -> float:
        """No time passes here."""
        return 0.0


class LateCard(_torch.dispatch_mode()):
    """A card whose streams run in one of ORDERS; use as a context manager.

    `modules` are those that may have imported names such as `Stream` from torch.cuda: they get the stand-ins too.
    `tasks` are all kernels and copies in the order of their launch, `races` what the checker found, `pinning` what was
    pinned, `reserved` the bytes of the card that the allocator took.
    """

    def __init__(self, order: str = "late", modules: Iterable[Any] = ()):
        super().__init__()
        self.order, self.modules, self.device = order, list(modules), torch.device("cuda", 0)
        self._fake, self._checker = _torch.fake_mode(), _torch.StreamChecker()
        self.pinning = _Pinning(self._checker.new_tensor_at)
        self.Stream, self.Event = (type(kind.__name__, (kind,), {"card": self}) for kind in (Stream, Event))
        self._ids, self._streams, self.tasks, self.races = count(), [], [], []
        self._free, self._late, self.reserved = defaultdict(list), [], 0  # by stream and size; blocks still in use
        self.default = self.current = self.Stream()
        self._checker.stream_made(HOST)
        self._launch = self.Event()
        self.label: Callable[[str, set[int]], Any] = lambda what, memory: None  # what a task is, if anybody asks

    # ------------------------------------------------------------------------------------------------- in and out

    def __enter__(self):
        self._stack = ExitStack()
        self._stack.enter_context(self.pinning)
        for owner, names in self._stand_ins():
            for name, value in names.items():
                self._stack.enter_context(_replaced(owner, name, value))
        self._stack.enter_context(torch.backends.cudnn.flags(enabled=False))  # its operators are not on the CPU
        self._stack.enter_context(_torch.fake_parameters_can_move())
        self._stack.enter_context(self._fake)
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self._stack.close()

    def _stand_ins(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """What to replace, where."""
        cuda = {
            "Stream": self.Stream,
            "Event": self.Event,
            "stream": self._in_stream,
            "StreamContext": self._in_stream,
            "current_stream": lambda device=None: self.current,
            "default_stream": lambda device=None: self.default,
            "set_stream": lambda stream: setattr(self, "current", stream),
            "synchronize": lambda device=None: self.synchronize(),
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "device": lambda device: nullcontext(),
            "empty_cache": lambda: None,
        }
        accelerator = {name: cuda[name] for name in ("current_stream", "set_stream", "synchronize")}
        known = {id(getattr(torch.cuda, name)): value for name, value in cuda.items()}
        known |= {id(torch.Stream): self.Stream, id(torch.Event): self.Event}
        for module in self.modules:
            yield module, {name: known[id(v)] for name, v in list(vars(module).items()) if id(v) in known}
        yield torch.cuda, cuda
        yield torch.accelerator, accelerator
        yield torch, {"Stream": self.Stream, "Event": self.Event}
        yield Tensor, {"record_stream": lambda tensor, stream: self._record(tensor, stream)}

    @contextmanager
    def _in_stream(self, stream: Stream | None) -> Iterator[None]:
        if stream is None:
            yield
        else:
            with stream:
                yield

    def synchronize(self) -> None:
        """The host waits for everything."""
        for stream in self._streams:
            self._run_stream(stream)
        self._checker.host_waited_for_all()

    def put(self, module: nn.Module) -> nn.Module:
        """The module with its parameters and buffers on the card, and nothing of that in any queue."""
        for part in module.modules():
            for name, value in part._parameters.items():
                if value is not None:
                    on_card = self._on_card(value.detach())
                    part._parameters[name] = nn.Parameter(on_card, requires_grad=value.requires_grad)
                    part._parameters[name]._twin, part._parameters[name]._block = on_card._twin, on_card._block
            for name, value in part._buffers.items():
                part._buffers[name] = value if value is None else self._on_card(value)
        return module

    def _on_card(self, value: Tensor) -> Tensor:
        with self._fake:
            fake = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=self.device)
        self._give(fake, Block(value, self.default), value)
        return fake

    # --------------------------------------------------------------------------------------------------- the operators

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if torch.is_inference_mode_enabled() and (got := self._in_parts(func, args, kwargs)) is not NotImplemented:
            return got
        found = [t for t in _tensors([*args, *kwargs.values()])]
        if func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
            return self._copied(func, args, kwargs)
        if not (any(map(_is_fake, found)) or _names_card(kwargs.get("device"))):
            self._host_reads(func, found)
            with _torch.no_modes():
                return func(*args, **kwargs)
        return self._kernel(func, args, kwargs)

    def _in_parts(self, func, args: tuple, kwargs: dict) -> Any:
        """In inference mode an operator made of others arrives whole: let those arrive one by one."""
        if func.namespace != "aten":
            return NotImplemented
        mode = _torch.dispatch_mode()
        mode.__enter__(self)
        try:
            return func.decompose(*args, **kwargs)
        finally:
            mode.__exit__(self, None, None, None)

    def _kernel(self, func, args: tuple, kwargs: dict) -> Any:
        """An operator on the card."""
        try:
            with self._fake:
                fake = func(*args, **kwargs)
        except _torch.needs_values():
            return self._waits_for_values(func, args, kwargs)
        if _is_fake(fake) and hasattr(fake, "_twin"):  # an operator that writes into its argument
            self._launch_on_twins(func, args, kwargs, written=[fake])
            return fake
        if any(r.alias_info for r in func._schema.returns):
            self._view(func, args, kwargs, fake)
            return fake
        outs = [t for t in _tensors(fake)]
        for out in outs:
            self._allocate(out)
        if "empty" in func.overloadpacket.__name__:  # no kernel
            return fake
        self._launch_on_twins(func, args, kwargs, written=outs, into=[out._twin for out in outs])
        return fake

    def _view(self, func, args: tuple, kwargs: dict, fake: Any) -> None:
        """Another look at the same memory: no kernel."""
        (source, *_) = _tensors(args)
        with _torch.no_modes():
            twins = func(*_twins(args), **_on_cpu(kwargs))
        for new, twin in zip(_tensors(fake), _tensors(twins), strict=True):
            self._give(new, source._block, twin)

    def _launch_on_twins(
        self, func, args: tuple, kwargs: dict, written: list[Tensor], into: list | None = None
    ) -> None:
        """Queue the operator; `into` gets what it returns, where it does not write into an argument itself."""
        real_args, real_kwargs = _twins(args), _on_cpu(_twins(kwargs))

        def run() -> None:
            with _torch.no_modes(), torch.no_grad():
                got = func(*real_args, **real_kwargs)
                for place, value in zip(into or (), _tensors(got), strict=False):
                    if value.numel():  # what only a card's kernel keeps for backward is empty on the CPU
                        place.copy_(value)

        reads = [t for t in _tensors([*args, *kwargs.values()]) if not any(t is w for w in written)]
        self._launch_task(run, func.overloadpacket.__name__, reads, written)

    def _waits_for_values(self, func, args: tuple, kwargs: dict) -> Any:
        """An operator whose result depends on values: the host waits for this stream."""
        self.current.synchronize()
        with _torch.no_modes():
            got = func(*_twins(args), **_on_cpu(_twins(kwargs)))
        if not isinstance(got, Tensor):
            return got
        with self._fake:
            fake = torch.empty_strided(got.size(), got.stride(), dtype=got.dtype, device=self.device)
        self._allocate(fake)._twin.copy_(got)
        return fake

    def _copied(self, func, args: tuple, kwargs: dict) -> Any:
        """`to` and `copy_`: between which places, and does the host wait?"""
        into = func.overloadpacket is torch.ops.aten.copy_
        source = args[1] if into else args[0]
        to_card = _is_fake(args[0]) if into else _names_card(kwargs.get("device", source.device))
        if not to_card and not _is_fake(source):
            self._host_reads(func, [source])
            with _torch.no_modes():
                return func(*args, **kwargs)
        if to_card and _is_fake(source):
            return self._kernel(func, args, kwargs)
        freely = bool(kwargs.get("non_blocking", into and len(args) > 2 and args[2]))
        target = args[0] if into else self._place_for(source, kwargs, to_card, freely)
        host = source if to_card else target
        waits = not (freely and self.pinning.is_pinned(host))
        if waits and not self.pinning.is_pinned(host):
            self.current.synchronize()  # the driver takes it through a buffer of its own
        here, there = _twin(source), _twin(target)

        def run() -> None:
            with _torch.no_modes(), torch.no_grad():
                there.copy_(here)

        what = "copy to the card" if to_card else "copy to the host"
        self._launch_task(run, what, [source], [target])
        if waits:
            self.current.synchronize()
        return target

    def _place_for(self, source: Tensor, kwargs: dict, to_card: bool, freely: bool) -> Tensor:
        """The result of `to`: on the card; or on the host, pinned where the copy is not to be waited for."""
        dtype = kwargs.get("dtype") or source.dtype
        if to_card:
            with self._fake:
                fake = torch.empty_like(source, dtype=dtype, device=self.device)
            return self._allocate(fake)
        with _torch.no_modes():
            place = torch.zeros_like(
                _twin(source), dtype=dtype
            )  # what is read too early is at least the same each time
            return self.pinning.pin(place) if freely and place.numel() else place

    # ------------------------------------------------------------------------------------------------------ the memory

    def _allocate(self, fake: Tensor) -> Tensor:
        """Memory for a new tensor: that of a dead one of the same stream and size, or more of the card."""
        self._reclaim()
        nbytes = max(1, _span(fake)) * fake.element_size()
        size = -(-nbytes // ROUND) * ROUND
        pool = self._free[self.current, size]
        with _torch.no_modes():
            if pool:
                base = pool.pop()
            else:
                base, self.reserved = torch.full((size,), 255, dtype=torch.uint8), self.reserved + size  # nan in floats
            flat = (
                base[:nbytes].view(fake.dtype) if fake.dtype != torch.bool else base[:nbytes].fill_(0).view(torch.bool)
            )
            twin = flat.as_strided(fake.size(), fake.stride())
        block = Block(base, self.current)
        weakref.finalize(block, self._died, base, self.current, block.used_on, size).atexit = False
        return self._give(fake, block, twin)

    def _give(self, fake: Tensor, block: Block, twin: Tensor) -> Tensor:
        fake._twin, fake._block = twin, block
        return fake

    def _died(self, base: Tensor, stream: Stream, used_on: set[Stream], size: int) -> None:
        """No tensor uses the block any more; queued kernels may."""
        self._late.append(([other.record_event() for other in used_on if other is not stream], base, stream, size))

    def _reclaim(self) -> None:
        waiting, self._late = self._late, []
        for events, base, stream, size in waiting:
            if all(event._mark.done for event in events):
                for event in events:  # by which the allocator, on the host, knows it
                    self._checker.host_waited_for_event(event._id)
                self._free[stream, size].append(base)
            else:
                self._late.append((events, base, stream, size))

    def _record(self, tensor: Tensor, stream: Stream) -> None:
        tensor._block.used_on.add(stream)

    # ------------------------------------------------------------------------------------------------------- the queues

    def _launch_task(self, run: Callable, what: str, reads: list[Tensor], writes: list[Tensor]) -> None:
        stream, checker = self.current, self._checker
        checker.recorded(self._launch._id, HOST)  # a kernel starts after its launch
        checker.waits(self._launch._id, stream.stream_id)
        self._check(stream.stream_id, what, reads, writes)
        after, host_after = (checker.ended_before(s) for s in (stream.stream_id, HOST))
        memory = {_twin(t).data_ptr() for t in (*reads, *writes)}
        task = Task(run, what, stream.stream_id, checker.launches, after, host_after, self.label(what, memory), memory)
        self.tasks.append(task)
        stream._queue.append(task)
        self._launched()

    def _launched(self) -> None:
        if self.order == "at once":
            for stream in self._streams:
                self._run_stream(stream)

    def _host_reads(self, func, tensors: list[Tensor]) -> None:
        """The host looks at memory that the card may still write, or writes what the card may still read."""
        pinned = [t for t in tensors if type(t) is Tensor and self.pinning.is_pinned(t)]
        if pinned:
            written = pinned[:1] if func._schema.is_mutable else []
            self._check(HOST, func.overloadpacket.__name__, pinned[len(written) :], written)

    def host_reads(self, tensor: Tensor) -> Tensor:
        """What the host finds in a tensor of its own now."""
        if self.pinning.is_pinned(tensor):
            self._check(HOST, "read", [tensor], [])
        with _torch.no_modes():
            return tensor.detach().clone()

    def _check(self, stream: int, what: str, reads: list[Tensor], writes: list[Tensor]) -> None:
        """Tell the checker, and keep what it finds."""
        read, written = ({_twin(t).data_ptr() for t in some} for some in (reads, writes))
        found = self._checker.launched(stream, what, read, written)
        for error in found:
            now, before = error.current_access, error.previous_access
            access = "read" if now.type.name == "READ" else "write"
            self.races.append(Race(access, now.operator, _line(now), before.operator, _line(before)))

    def _run_stream(self, stream: Stream) -> None:
        if stream._queue:
            self._run_until(stream._queue[-1])

    def _run_until(self, last: Any) -> None:
        """Run a stream until `last`, a task or a mark of it, has run; and whatever that waits for."""
        stream = next(s for s in self._streams if last in s._queue) if not isinstance(last, Mark) else last.stream
        while not getattr(last, "done", False) and (last in stream._queue):
            if self.order == "side first":
                for other in self._streams:
                    if other is not stream:
                        self._run_ahead(other)
            self._step(stream)

    def _meanwhile(self, stream: Stream) -> bool:
        """Somebody asks whether a stream is done, and it is not: let it go on a little, so that asking has an end."""
        if stream._queue:
            self._step(stream)
        return False

    def _run_ahead(self, stream: Stream) -> None:
        """Run a stream for as long as it waits for nobody."""
        while stream._queue and not self._waits(stream):
            self._step(stream)

    def _waits(self, stream: Stream) -> bool:
        head = stream._queue[0]
        return isinstance(head, Mark) and head.stream is not stream and not head.done

    def _step(self, stream: Stream) -> None:
        """Take the first item of a stream: run it, or wait for another stream's mark."""
        head = stream._queue[0]
        if self._waits(stream):
            self._run_until(head)
        stream._queue.popleft()
        if isinstance(head, Task):
            head.run()
            head.run = None  # lets go of the memory
        elif head.stream is stream:
            head.done = True


# --------------------------------------------------------------------------------------------------------- small things


def _is_fake(value: Any) -> bool:
    return hasattr(value, "fake_device")


def _names_card(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _twin(tensor: Tensor) -> Tensor:
    return tensor._twin if _is_fake(tensor) else tensor


def _twins(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _twin(value)
    if isinstance(value, dict):
        return {name: _twins(v) for name, v in value.items()}
    return type(value)(_twins(v) for v in value) if isinstance(value, list | tuple) else value


def _on_cpu(kwargs: dict) -> dict:
    return kwargs | {"device": torch.device("cpu")} if _names_card(kwargs.get("device")) else kwargs


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _tensors(v)


def _span(tensor: Tensor) -> int:
    return (
        0 if tensor.numel() == 0 else 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))
    )


def _line(access) -> str:
    """The innermost line of an access that is neither PyTorch's nor this file's."""
    torchs = str(Path(torch.__file__).parent)
    for frame in reversed(access.stack_trace):
        if not frame.filename.startswith((torchs, OURS, "<frozen")):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return ""


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    had, kept = name in vars(owner), getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, kept)
        else:
            delattr(owner, name)
