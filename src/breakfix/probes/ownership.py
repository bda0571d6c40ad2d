"""Who knows of the tensors that a loss is computed from: the module, the optimizer, both, or neither.

    owned = ownership(loss_fn(model(x), y), model, optimizer)
    print(owned)    # one line per finding, or "every parameter of the loss is registered and has an optimizer"
    assert not owned.unregistered and not owned.orphans

Nothing is compared by name. The graph behind the loss says which leaves it depends on; the module says which of them it
registers, which is what `parameters()`, `state_dict()` and `to()` see; the optimizers say which of them they step.
Forward is not run here, and no value changes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Named = dict[str, Tensor]


@dataclass(frozen=True)
class Ownership:
    """Tensors that somebody lost, by name. All but `unreached` are of no use to somebody who trains."""

    unregistered: Named  # the loss depends on them, and no parameter of the module is one of them
    unowned: Named  # parameters of the module that the loss depends on, and no optimizer holds
    orphans: Named  # an optimizer holds them; they are not in the module, and the loss does not depend on them
    unreached: Named  # parameters that require a gradient, and on which this loss does not depend
    reached: list[Tensor] = field(repr=False)  # every leaf that the loss depends on and that requires a gradient

    @property
    def unregistered_share(self) -> float:
        """Elements that are not registered, of all on which the loss depends; nan where there are none."""
        whole = sum(t.numel() for t in self.reached)
        return sum(t.numel() for t in self.unregistered.values()) / whole if whole else float("nan")

    def __str__(self) -> str:
        told = {
            "in the loss, not in the module": self.unregistered,
            "in the loss, in no optimizer": self.unowned,
            "in an optimizer, neither in the module nor in the loss": self.orphans,
            "not reached by this loss": self.unreached,
        }
        lines = [f"{what}: {name} {list(t.shape)}" for what, named in told.items() for name, t in named.items()]
        return "\n".join(lines) or "every parameter of the loss is registered and has an optimizer"


def ownership(loss: Tensor, model: nn.Module, *optimizers: torch.optim.Optimizer) -> Ownership:
    """What `loss`, still with its graph, depends on, against `model`'s parameters and what the optimizers hold."""
    reached = list(leaves(loss))
    registered = dict(model.named_parameters())
    held = {
        f"optimizer {i}, group {j}, tensor {k}": t
        for i, optimizer in enumerate(optimizers)
        for j, group in enumerate(optimizer.param_groups)
        for k, t in enumerate(group["params"])
    }
    ids = {what: {id(t) for t in ts} for what, ts in (("loss", reached), ("model", registered.values()))}
    owned = {id(t) for t in held.values()}
    hidden = [t for t in reached if id(t) not in ids["model"]]
    return Ownership(
        unregistered=dict(_named(hidden, model)),
        unowned={n: t for n, t in registered.items() if id(t) in ids["loss"] and id(t) not in owned},
        orphans={n: t for n, t in held.items() if id(t) not in ids["loss"] | ids["model"]},
        unreached={n: t for n, t in registered.items() if t.requires_grad and id(t) not in ids["loss"]},
        reached=reached,
    )


def leaves(tensor: Tensor) -> Iterator[Tensor]:
    """Every leaf that requires a gradient and from which `tensor` was computed, once."""
    if tensor.grad_fn is None:
        yield from [tensor] * tensor.requires_grad
        return
    stack, seen = [tensor.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # where autograd accumulates a gradient
            yield node.variable
        stack += [below for below, _ in node.next_functions]


def _named(tensors: list[Tensor], model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each with the path on which the module's attributes lead to it, where there is one."""
    paths: dict[int, str] = {}
    for name, part in model.named_modules():
        for attribute, value in vars(part).items():
            if not attribute.startswith("_"):
                _look(value, f"{name}.{attribute}".lstrip("."), paths)
    for i, tensor in enumerate(tensors):
        yield paths.get(id(tensor), f"somewhere else ({i})"), tensor


def _look(value, path: str, paths: dict[int, str]) -> None:
    """Follow lists, tuples, dicts and modules to tensors."""
    if isinstance(value, Tensor):
        paths.setdefault(id(value), path)
    elif isinstance(value, nn.Module):
        for name, p in value.named_parameters():
            paths.setdefault(id(p), f"{path}.{name}")
    elif isinstance(value, list | tuple | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            _look(item, f"{path}[{key!r}]", paths)
