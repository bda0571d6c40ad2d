"""Which of the parameters that a loss depends on a module registers, and an optimizer holds."""

import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from breakfix.examine.events import Backward, Probe
from breakfix.examine.findings import CERTAIN, LIKELY, NOTE, Finding
from breakfix.examine.gradients import plain
from breakfix.examine.lines import NOWHERE, Line
from breakfix.probes.ownership import _look

SAMPLE = 64  # elements that are compared, to see whether somebody updates a parameter by hand
TOLD = 4  # names in a finding


@dataclass
class Leaf:
    """A parameter that a loss depends on."""

    tensor: weakref.ref
    size: int
    shape: list[int]
    sample: Tensor = field(repr=False)
    line: Line
    name: str = ""
    root: str = ""  # the module that registers it, or in whose forward it is used
    place: int = 0  # its number among the root's parameters
    registered: bool = False
    hidden: bool = False  # a module's attributes lead to it all the same
    training: bool = True
    reached: int = 0
    moved: bool = False
    owned: bool = False


class Owners(Probe):
    """Judges at the end, when every optimizer has been made: in a GAN one may come late."""

    name = "owners"

    def __init__(self, watch):
        super().__init__(watch)
        self.leaves: dict[int, Leaf] = {}
        self.gone: list[Leaf] = []
        self.roots: dict[int, weakref.ref] = {}
        self.optimizers: dict[int, weakref.ref] = {}
        self.orphans: dict[str, int] = {}
        self.frozen: dict[str, int] = {}
        self.stepped = False

    def called(self, module: nn.Module, inputs, grad: bool) -> None:
        known = self.roots.get(id(module))
        if known is None or known() is not module:
            self.roots[id(module)] = weakref.ref(module)

    def constructed(self, optimizer, line: Line) -> None:
        self.optimizers[id(optimizer)] = weakref.ref(optimizer)

    def step_begins(self, optimizer, line: Line) -> None:
        self.stepped = True
        known = self.optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:
            self.optimizers[id(optimizer)] = weakref.ref(optimizer)

    def backward_begins(self, event: Backward) -> None:
        if not event.leaves:
            return
        new = [t for t in event.leaves if self._seen(t, event.line)]
        if new:
            self._name()
        self._own()

    def findings(self) -> list[Finding]:
        self._own()
        every = [leaf for leaf in (*self.gone, *self.leaves.values()) if leaf.reached > 1]
        lost = [leaf for leaf in every if not leaf.owned and not leaf.moved]
        if not self.stepped or not lost:
            return []
        hidden = [leaf for leaf in lost if not leaf.registered and leaf.hidden]
        found = [_told("unregistered-parameters", CERTAIN if hidden[0].training else NOTE, hidden)] if hidden else []
        for root in dict.fromkeys(leaf.root for leaf in lost if leaf.registered):
            mine = [leaf for leaf in lost if leaf.registered and leaf.root == root]
            owned = [leaf for leaf in every if leaf.root == root and leaf.owned]
            found.append(_told("unowned-parameters", self._rank(mine, owned), mine, self._orphans(), self._frozen()))
        return found

    def _rank(self, lost: list[Leaf], owned: list[Leaf]) -> str:
        """What comes behind trained layers has been forgotten; what comes before may be features on purpose."""
        if not owned:
            return NOTE
        if self._orphans():
            return CERTAIN
        behind = max(leaf.place for leaf in lost) > max(leaf.place for leaf in owned)
        return LIKELY if behind or self._frozen() else NOTE  # who holds frozen ones was made before the rest

    def _orphans(self) -> int:
        return max(self.orphans.values(), default=0)

    def _frozen(self) -> int:
        return max(self.frozen.values(), default=0)

    def _seen(self, t: Tensor, line: Line) -> bool:
        """Count a leaf; True where it is new."""
        known = self.leaves.get(id(t))
        if known is not None and known.tensor() is t:
            known.reached += 1
            known.moved = known.moved or not torch.equal(known.sample, _sample(t))
            return False
        if not plain(t):
            return False
        if known is not None:
            self.gone.append(known)
        if len(self.leaves) > 20_000:
            return False
        self.leaves[id(t)] = Leaf(weakref.ref(t), t.numel(), list(t.shape), _sample(t), line, reached=1)
        return True

    def _name(self) -> None:
        """Find names, by the modules that have been called: what registers a parameter comes before what hides it."""
        roots = [m for ref in self.roots.values() if (m := ref()) is not None]
        for root in roots:
            for place, (name, p) in enumerate(root.named_parameters()):
                leaf = self._leaf(p)
                if leaf and not leaf.registered:
                    leaf.name, leaf.root, leaf.place, leaf.registered = name, _kind(root), place, True
                    leaf.training = _module_of(root, name).training
        for root in roots:
            paths: dict[int, str] = {}
            registered = {id(p) for p in root.parameters()}
            for name, part in root.named_modules():
                for attribute, value in vars(part).items():
                    if not attribute.startswith("_"):
                        _look(value, f"{name}.{attribute}".lstrip("."), paths)
            for key, path in paths.items():
                leaf = self.leaves.get(key)
                if (
                    leaf
                    and key not in registered
                    and leaf.tensor() is not None
                    and not self._in_other(leaf, root, roots)
                ):
                    leaf.name, leaf.root, leaf.hidden, leaf.registered = path, _kind(root), True, False

    def _in_other(self, leaf: Leaf, root: nn.Module, roots: list[nn.Module]) -> bool:
        """Whether a module registers it that is no mere hidden layer: a container that was called too."""
        t = leaf.tensor()
        holders = [m for m in roots if m is not root and any(p is t for p in m.parameters())]
        return any(sum(1 for _ in m.parameters()) > sum(1 for _ in root.parameters()) for m in holders)

    def _leaf(self, p: Tensor) -> Leaf | None:
        leaf = self.leaves.get(id(p))
        return leaf if leaf is not None and leaf.tensor() is p else None

    def _own(self) -> None:
        for ref in self.optimizers.values():
            optimizer = ref()
            if optimizer is None:
                continue
            held = [p for group in optimizer.param_groups for p in group["params"]]
            for p in held:
                if leaf := self._leaf(p):
                    leaf.owned = True
            name = type(optimizer).__name__
            self.orphans[name] = sum(p.requires_grad and p.grad is None and self._leaf(p) is None for p in held)
            self.frozen[name] = sum(not p.requires_grad and self._leaf(p) is None for p in held)


def _sample(t: Tensor) -> Tensor:
    return t.detach().reshape(-1)[:SAMPLE].clone()


def _kind(module: nn.Module) -> str:
    return type(module).__name__


def _module_of(root: nn.Module, name: str) -> nn.Module:
    return root.get_submodule(name.rpartition(".")[0])


def _told(name: str, rank: str, lost: list[Leaf], orphans: int = 0, frozen: int = 0) -> Finding:
    size, lost = sum(leaf.size for leaf in lost), sorted(lost, key=lambda leaf: (leaf.place, leaf.name))
    names = ", ".join(f"{leaf.name} {leaf.shape}" for leaf in lost[:TOLD]) + (", ..." if len(lost) > TOLD else "")
    told = (
        f"{len(lost)} parameters of {lost[0].root} with {size:,} elements have gradients and stay as they are: {names}"
    )
    if orphans:
        told += f"; an optimizer holds {orphans} that no loss depends on"
    elif frozen:
        told += f"; an optimizer holds {frozen} that are frozen instead"
    figures = {
        "parameters": len(lost),
        "elements": size,
        "orphans": orphans,
        "names": [leaf.name for leaf in lost[:20]],
    }
    return Finding(name, rank, told, lost[0].line if lost[0].line else NOWHERE, figures, 1)
