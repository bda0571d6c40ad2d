"""The places where torch is listened to. Each hands on to the original and tells the watch beside it.

PyTorch's own hooks are used where there are some: for optimizers and modules. Elsewhere a function is wrapped. Every
hook leaves at once while a region is being compiled: else it would be compiled too, and counted as a change.
"""

import functools
import os
import sys
import warnings
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DistributedSampler

from breakfix.examine.events import Watch
from breakfix.examine.lines import own_line
from breakfix.probes import _torch

READS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__format__")


def listen(watch: Watch) -> None:
    """Install every hook."""
    # torch.compile(module) warns of global hooks; that is not the script's doing, and -W error would stop it
    warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
    _wrap(torch.autograd, "backward", lambda original: _backward(watch, original))
    register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: _step_begins(watch, optimizer))
    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: _step_ended(watch, optimizer))
    _wrap(Optimizer, "__init__", lambda original: _constructed(watch, original))
    register_module_forward_pre_hook(Modules(watch).called)
    _wrap(_torch.loader_iterator(), "__next__", lambda original: _loaded(watch, original))
    _wrap(DistributedSampler, "__iter__", lambda original: _before(watch, "sampled", original))
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        wrapped = _clipped(watch, getattr(nn.utils, name))
        setattr(nn.utils, name, wrapped)
        setattr(nn.utils.clip_grad, name, wrapped)
    scaler = torch.amp.GradScaler
    _wrap(scaler, "scale", lambda original: _before(watch, "scaled", original))
    _wrap(scaler, "unscale_", lambda original: _before(watch, "unscaling", original))
    _wrap(scaler, "step", lambda original: _before(watch, "scaler_steps", original))
    _wrap(scaler, "update", lambda original: _before(watch, "scaler_updated", original))
    for name in READS:
        _wrap(Tensor, name, lambda original: _read(watch, original))


def _wrap(owner, name: str, make: Callable) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def _backward(watch: Watch, original: Callable) -> Callable:
    def begin(args, kwargs, frame):
        tensors = args[0] if args else kwargs.get("tensors", ())
        tensors = [tensors] if isinstance(tensors, Tensor) else [t for t in tensors if isinstance(t, Tensor)]
        return watch.backward(tensors, own_line(frame))

    def backward(*args, **kwargs):
        if watch.quiet():
            return original(*args, **kwargs)
        event = watch.guarded("backward", begin, args, kwargs, sys._getframe(1))
        if event is None:
            return original(*args, **kwargs)
        watch.tell("backward_begins", event)
        done = original(*args, **kwargs)
        watch.tell("backward_ended", event)
        return done

    return backward


def _step_begins(watch: Watch, optimizer: Optimizer) -> None:
    if not watch.quiet():
        watch.steps += 1
        watch.tell("step_begins", optimizer, own_line())


def _step_ended(watch: Watch, optimizer: Optimizer) -> None:
    if not watch.quiet():
        watch.tell("step_ended", optimizer, own_line())
        watch.now_and_then()


def _constructed(watch: Watch, original: Callable) -> Callable:
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if not watch.quiet():
            watch.tell("constructed", self, own_line())

    return __init__


class Modules:
    """Tells of outermost calls: of modules that are part of no other module which has been called."""

    def __init__(self, watch: Watch):
        self.watch = watch
        self.inner: dict[int, weakref.ref] = {}
        self.counted: dict[int, tuple[weakref.ref, int]] = {}

    def called(self, module: nn.Module, inputs: tuple) -> None:
        if torch.compiler.is_compiling() or id(module) in self.inner or self.watch.quiet():
            return
        grad = torch.is_grad_enabled()
        self.watch.guarded("modules", self._look_inside, module)
        self.watch.root_calls += 1
        self.watch.tell("called", module, inputs, grad)

    def _look_inside(self, module: nn.Module) -> None:
        """What is part of it is no outermost module; a part may come later, so that it looks again now and then."""
        known, calls = self.counted.get(id(module), (None, 0))
        calls = calls + 1 if known is not None and known() is module else 1
        self.counted[id(module)] = weakref.ref(module), calls
        if calls & (calls - 1) == 0:
            for part in [*module.modules()][1:]:
                self._is_inner(part)
        if module._modules or module._parameters:
            self.watch.latest_root = id(module)

    def _is_inner(self, part: nn.Module) -> None:
        key = id(part)
        self.inner[key] = weakref.ref(part, lambda _: self.inner.pop(key, None))


def _loaded(watch: Watch, original: Callable) -> Callable:
    from time import perf_counter

    def __next__(self):
        started = perf_counter()
        batch = original(self)
        if not watch.quiet():
            watch.tell("loaded", self, started, perf_counter())
        return batch

    return __next__


def _before(watch: Watch, event: str, original: Callable) -> Callable:
    def call(self, *args, **kwargs):
        if not watch.quiet():
            watch.tell(event, self, *args[:1])
        return original(self, *args, **kwargs)

    return call


def _clipped(watch: Watch, original: Callable) -> Callable:
    @functools.wraps(original)
    def clip(parameters, *args, **kwargs):
        if watch.quiet():
            return original(parameters, *args, **kwargs)
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        watch.tell("clipped", parameters, own_line())
        return original(parameters, *args, **kwargs)

    return clip


def _read(watch: Watch, original: Callable) -> Callable:
    def read(self, *args, **kwargs):
        if watch.quiet() or not isinstance(self, Tensor):
            return original(self, *args, **kwargs)
        watch.busy.on = True  # what a read calls is part of it
        try:
            watch.note_read(self, sys._getframe(1))
            return original(self, *args, **kwargs)
        finally:
            watch.busy.on = False

    return read


def before_leaving(flush: Callable[[], None]) -> None:
    """Call `flush` where a process leaves without its exit handlers, as the children of multiprocessing do."""
    original = os._exit

    @functools.wraps(original)
    def leave(code):
        flush()
        original(code)

    os._exit = leave
