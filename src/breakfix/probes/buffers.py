"""Which values of a module moved inside a block, by how much, and which of its switches were turned.

    with watch(model) as seen:
        evaluate(model, loader)
    print(seen)                                 # one line per change; "nothing has changed" where nothing has
    assert not seen.moved and not seen.switched

Values are compared bit by bit with a copy taken at the start, so it does not matter how they were written: by an
optimizer, by a kernel, through `.data` or through a NumPy array that shares the memory. The copy takes as many bytes as
what is watched, on the same device; `parameters=False` watches buffers and switches alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

ROOT = "(itself)"  # the name of the module that is watched, among its parts


@dataclass(frozen=True)
class Moved:
    """A parameter or buffer that is not what it was."""

    name: str  # as in named_parameters() or named_buffers()
    kind: str  # "parameter" or "buffer"
    by: float  # see distance(); inf where the two cannot be subtracted
    how: str  # "changed", "added", "removed", or what it has become: "shape [3] -> [4]", "dtype ..."

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.how}{f' by {self.by:.3g}' if self.how == 'changed' else ''}"


@dataclass(frozen=True)
class Switched:
    """A flag that is not what it was: `training` of a module, `requires_grad` of a parameter."""

    name: str
    flag: str
    before: bool
    after: bool

    def __str__(self) -> str:
        return f"{self.name}.{self.flag} {self.before} -> {self.after}"


@dataclass(eq=False, repr=False)
class Watch:
    """What has changed between entering and look(), which leaving calls; by the order of names in the module."""

    module: nn.Module
    parameters: bool = True
    moved: list[Moved] = field(default_factory=list)
    switched: list[Switched] = field(default_factory=list)

    def __enter__(self) -> "Watch":
        self._values = {key: _copy(value) for key, value in self._tensors()}
        self._flags = dict(self._switches())
        return self

    def __exit__(self, *raised) -> None:
        self.look()

    def look(self) -> "Watch":
        """Compare now; inside the block too. Returns itself."""
        now, flags = dict(self._tensors()), dict(self._switches())
        pairs = [(key, self._values.get(key), now.get(key)) for key in self._values | now]
        self.moved = [Moved(name, kind, *found) for (kind, name), a, b in pairs if (found := _difference(a, b))]
        both = [(key, self._flags[key], value) for key, value in flags.items() if key in self._flags]
        self.switched = [Switched(name, flag, a, b) for (name, flag), a, b in both if a != b]
        return self

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.moved, *self.switched))) or "nothing has changed"

    def _tensors(self) -> Iterator[tuple[tuple[str, str], Tensor]]:
        parameters = self.module.named_parameters() if self.parameters else ()
        for kind, tensors in ("parameter", parameters), ("buffer", self.module.named_buffers()):
            yield from (((kind, name), tensor) for name, tensor in tensors if not is_lazy(tensor))

    def _switches(self) -> Iterator[tuple[tuple[str, str], bool]]:
        for name, part in self.module.named_modules():
            yield (name or ROOT, "training"), part.training
        for name, parameter in self.module.named_parameters():
            yield (name, "requires_grad"), parameter.requires_grad


def watch(module: nn.Module, parameters: bool = True) -> Watch:
    """A context manager that says, when it is left, what has changed in `module` and all its parts.

    What the block raises goes through, and the comparison is made all the same.
    """
    return Watch(module, parameters)


def distance(before: Tensor, after: Tensor) -> float:
    """||after - before|| / ||before|| in float64, absolute where before is zero; of integers the largest difference.

    nan where the difference has one: a value that is not finite has no distance.
    """
    before, after = before.detach().cpu(), after.detach().cpu()
    if not (before.is_floating_point() or before.is_complex()):
        return float((after.long() - before.long()).abs().max())
    wide = torch.complex128 if before.is_complex() else torch.float64
    moved, size = (torch.linalg.vector_norm(t.to(wide)).item() for t in (after.to(wide) - before.to(wide), before))
    return moved / size if size > 0 else moved


def _difference(before: Tensor | None, after: Tensor | None) -> tuple[float, str] | None:
    """(by, how) of Moved; None where the two are equal, bit by bit."""
    if before is None or after is None:
        return math.inf, "added" if before is None else "removed"
    if before.shape != after.shape:
        return math.inf, f"shape {list(before.shape)} -> {list(after.shape)}"
    if before.dtype != after.dtype:
        return math.inf, f"dtype {before.dtype} -> {after.dtype}"
    if before.is_meta != after.is_meta:  # one of them has no values
        return math.inf, f"device {before.device.type} -> {after.device.type}"
    if after.is_meta or torch.equal(_bits(before.to(after.device)), _bits(after)):
        return None
    return distance(before, after), "changed"


def _bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor: as values a nan would differ from itself."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
