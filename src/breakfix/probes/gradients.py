"""The gradients as the optimizer gets them, and whether its steps really move the weights.

    with Gradients(model) as watched:
        for batch in batches:
            train_step(model, optimizer, batch)
            watched.end_step()
    print(watched.report())

What a script logs between backward() and step() may still be scaled, or not clipped yet, or belong to a step that is
skipped. Here a gradient is read when the optimizer's step begins, and divided by `optimizer.grad_scale` where a
GradScaler has left that division to a fused optimizer. The weights are compared at the end of each training step,
whoever changed them. It takes twice the bytes of the parameters, and a GPU is waited for at every step.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook


@dataclass(frozen=True)
class Seen:
    """One parameter in one training step; all but `moved` are of the gradient that the optimizer got."""

    name: str
    elements: int
    norm: float | None  # None where it got no gradient
    zeros: int  # elements that are exactly zero
    not_finite: int  # elements that are nan or inf
    stuck: int  # elements that are finite and not zero, and whose weight did not change all the same
    moved: int  # elements of the parameter that changed; one that is nan counts as changed


@dataclass(frozen=True)
class Step:
    """One training step: how often step() of an optimizer ran, the scale it was left to divide by, every parameter."""

    calls: int  # 0 where a GradScaler skipped the step, or where no optimizer of torch.optim is used
    scale: float  # 1 where nothing was left to divide by; the gradients here are divided by it already
    parameters: tuple[Seen, ...]

    @property
    def norm(self) -> float:
        """Of all gradients together: 0 where there are none, nan or inf where one has one."""
        return math.sqrt(sum(seen.norm**2 for seen in self._with_gradient()))

    @property
    def zeros(self) -> float:
        """Share of the gradients' elements that are exactly zero; nan without gradients."""
        found = self._with_gradient()
        return _share(sum(seen.zeros for seen in found), sum(seen.elements for seen in found))

    @property
    def moved(self) -> float:
        """Share of all parameters' elements that changed."""
        return _share(sum(s.moved for s in self.parameters), sum(s.elements for s in self.parameters))

    def _with_gradient(self) -> list[Seen]:
        return [seen for seen in self.parameters if seen.norm is not None]


class Gradients:
    """Watches the parameters of a module, whichever optimizers hold them.

    `steps` has a Step for each end_step(). `gradients` has, by name, what the optimizers got in the latest of them, as
    copies in float32 at least; it is empty where none ran.
    """

    def __init__(self, model: nn.Module):
        self.steps: list[Step] = []
        self.gradients: dict[str, Tensor] = {}
        self._parameters = dict(model.named_parameters())

    def __enter__(self):
        self._begin()
        self._handle = register_optimizer_step_pre_hook(self._before_step)
        return self

    def __exit__(self, *error):
        self._handle.remove()

    @torch.no_grad()
    def end_step(self) -> Step:
        """Close a training step, and return it."""
        self.gradients = self._got
        self.steps.append(Step(self._calls, self._scale, tuple(self._seen())))
        self._begin()
        return self.steps[-1]

    def report(self) -> str:
        """One line on the steps, then one for each parameter, its shares taken over all steps."""
        called, moved = sum(step.calls > 0 for step in self.steps), sum(step.moved > 0 for step in self.steps)
        width = max(map(len, self._parameters), default=0)
        head = f"{len(self.steps)} training steps: an optimizer ran in {called}, a weight moved in {moved}"
        columns = f"{'':{width}}  {'last norm':>9} {'zeros':>7} {'moved':>7} {'stuck':>7}  not finite"
        return "\n".join([head, columns, *(f"{name:{width}}  {self._line(name)}" for name in self._parameters)])

    def _begin(self) -> None:
        self._calls, self._scale, self._got = 0, 1.0, {}
        self._before = {name: p.detach().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args, kwargs) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        mine = {name: p for name, p in self._parameters.items() if id(p) in held}
        if not mine:
            return  # somebody else's optimizer
        scale = getattr(optimizer, "grad_scale", None)
        self._scale = 1.0 if scale is None else float(scale)
        self._calls += 1
        self._got |= {name: _plain(p.grad) / self._scale for name, p in mine.items() if p.grad is not None}

    def _seen(self) -> Iterator[Seen]:
        for name, p in self._parameters.items():
            moved, gradient = p.detach() != self._before[name], self._got.get(name)
            if gradient is None:
                yield Seen(name, p.numel(), None, 0, 0, 0, int(moved.sum()))
                continue
            finite, zero = gradient.isfinite(), gradient == 0
            counts = torch.stack([t.sum() for t in (zero, ~finite, finite & ~zero & ~moved, moved)]).tolist()
            norm = torch.linalg.vector_norm(gradient, dtype=torch.float64).item()
            yield Seen(name, p.numel(), norm, *counts)

    def _line(self, name: str) -> str:
        seen = [s for step in self.steps for s in step.parameters if s.name == name]
        got = [s for s in seen if s.norm is not None]
        zeros, moved, stuck = (_total(*pair) for pair in ((got, "zeros"), (seen, "moved"), (got, "stuck")))
        norm = f"{got[-1].norm:9.2e}" if got else f"{'none':>9}"
        return f"{norm} {zeros:>7} {moved:>7} {stuck:>7} {sum(s.not_finite for s in got):11}"


def _total(seen: list[Seen], key: str) -> str:
    share = _share(sum(getattr(s, key) for s in seen), sum(s.elements for s in seen))
    return "-" if math.isnan(share) else f"{share:.1%}"


def _plain(gradient: Tensor) -> Tensor:
    """In float32 at least, and with the zeros that a sparse gradient leaves out."""
    gradient = gradient.to_dense() if gradient.is_sparse else gradient
    return gradient.to(torch.promote_types(gradient.dtype, torch.float32))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan
