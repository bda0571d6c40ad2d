"""At which line a card tells of an index that is out of range: a model of its queue, on the CPU.

    try:
        with LateErrors():
            loss = F.cross_entropy(model(photos), masks)     # one label is out of range: goes on, as on a card
            loss.backward()
            print(loss.item())                               # raises here
    except LateError as error:
        print(error.operator)                                # nll_loss2d_forward

A kernel that asserts is launched, and Python goes on. It hears of the assertion when it next waits for the card: at
`.item()`, a copy to the host, a print. All that is computed in between is void, and all that comes after. On a real
card `CUDA_LAUNCH_BLOCKING=1` brings the error back to its line; here leaving the block out does.
"""

from typing import Any

import torch
from torch import Tensor

from breakfix.probes import _torch

WAITS = ("_local_scalar_dense", "equal", "is_nonzero")  # operators that give Python a value


class LateError(RuntimeError):
    """Python asked for a value after an assertion; `operator` is the one that failed."""

    def __init__(self, operator: str):
        super().__init__(f"modelled: device-side assert triggered, by {operator}")
        self.operator = operator


class LateErrors(_torch.dispatch_mode()):
    """Keep an IndexError of an operator until Python asks for a value; what is computed meanwhile has shapes only."""

    def __init__(self):
        super().__init__()
        self.failed = ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self.failed:
            try:
                return func(*args, **kwargs)
            except IndexError:
                self.failed = func.overloadpacket.__name__
        if func.overloadpacket.__name__ in WAITS:
            raise LateError(self.failed)
        if func._schema.is_mutable:
            return args[0]
        elsewhere = {"device": "meta"} if "device" in kwargs else {}
        return _on("cpu", func(*_on("meta", args), **kwargs | elsewhere))


def _on(device: str, value: Any) -> Any:
    """Tensors of the same shapes on `device`, with nothing in them."""
    if isinstance(value, Tensor):
        return torch.empty_like(value, device=device)
    return type(value)(_on(device, v) for v in value) if isinstance(value, list | tuple) else value
