"""Training mode and evaluation mode, as a model is really called."""

import sys
import weakref
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from breakfix.examine.events import Backward, Probe
from breakfix.examine.findings import LIKELY, NOTE, Finding
from breakfix.examine.lines import NOWHERE, Line, own_line

SAMPLED = 4  # calls in a row with the same input: dropout is left on, on purpose, to see how answers vary


@dataclass
class Root:
    """A model that is called by itself, and in which modes."""

    kind: str
    module: weakref.ref
    noisy: str  # what in it depends on the mode: "2 x Dropout, BatchNorm1d"; "" where nothing does
    parameters: int  # elements
    owned: bool = False  # an optimizer steps its parameters
    pending: bool | None = None  # the mode of its latest call with gradients, until a step
    train_steps: int = 0
    eval_steps: int = 0  # since its last step in training mode
    eval_line: Line = NOWHERE
    run: int = 0  # calls without gradients and in training mode, since the last backward pass
    repeats: int = 0  # of them those with the very same input as the call before
    last_input: weakref.ref | None = None
    runs: list = field(default_factory=list)  # (calls, repeats)
    run_line: Line = NOWHERE
    unused: int = 0  # calls in evaluation mode with gradients, followed by another call or by the end
    unused_line: Line = NOWHERE
    evaluated: bool = False  # has been called in evaluation mode
    frozen: set = field(default_factory=set)


class Modes(Probe):
    """Judges models that are trained: a frozen teacher or a target network may be in any mode."""

    name = "modes"

    def __init__(self, watch):
        super().__init__(watch)
        self.roots: dict[int, Root] = {}
        self.stepped: list[int] = []  # optimizers in the order of their steps, the latest three that differ
        self.alternating = False  # two optimizers take turns, as in a GAN: models are called without gradients there

    def called(self, module: nn.Module, inputs, grad: bool) -> None:
        root = self._root(module)
        root.evaluated = root.evaluated or not module.training
        if grad:
            if root.pending is False and not module.training:
                root.unused += 1
                root.unused_line = own_line()
            root.pending = module.training
        elif module.training and root.noisy and not _recalibrates():
            self._evaluation(root, inputs)

    def backward_begins(self, event: Backward) -> None:
        for root in self.roots.values():
            if root.run:
                root.runs.append((root.run, root.repeats))
                root.run = root.repeats = 0

    def step_ended(self, optimizer, line: Line) -> None:
        if id(optimizer) not in self.stepped[-1:]:
            self.stepped = [*self.stepped[-2:], id(optimizer)]
            self.alternating = self.alternating or self.stepped[:-1].count(id(optimizer)) > 0
        held = None
        for root in self.roots.values():
            if root.pending is None:
                continue
            if not root.owned and (module := root.module()) is not None:
                held = held or {id(p) for group in optimizer.param_groups for p in group["params"]}
                root.owned = any(id(p) in held for p in module.parameters())
            if root.owned:
                self._step(root, line)
            root.pending = None

    def findings(self) -> list[Finding]:
        return [f for root in self.roots.values() if root.owned for f in self._judge(root)]

    def figures(self) -> dict:
        return {
            "models": [{"kind": r.kind, "parameters": r.parameters, "trained": r.owned} for r in self.roots.values()]
        }

    def _root(self, module: nn.Module) -> Root:
        known = self.roots.get(id(module))
        if known is None or known.module() is not module:
            known = self.roots[id(module)] = Root(
                type(module).__name__, weakref.ref(module), _noisy(module), _size(module)
            )
        return known

    def _evaluation(self, root: Root, inputs) -> None:
        given = next((x for x in inputs if isinstance(x, Tensor)), None)
        same = given is not None and root.last_input is not None and root.last_input() is given
        root.repeats += same
        root.run += 1
        root.last_input = weakref.ref(given) if given is not None else None
        if root.run_line == NOWHERE or root.run == 2:
            root.run_line = own_line()

    def _step(self, root: Root, line: Line) -> None:
        if root.pending:
            root.train_steps += 1
            root.eval_steps = 0
        else:
            root.eval_steps += 1
            root.eval_line = line if root.eval_steps == 1 else root.eval_line
        module = root.module()
        if module is not None and root.pending and root.train_steps <= 4:
            root.frozen |= {name for name, part in module.named_modules() if _moves_though_frozen(part)}

    def _judge(self, root: Root):
        if root.noisy and root.eval_steps >= 3:
            told = (
                f"{root.eval_steps} steps in eval mode, {root.train_steps} in training mode before; it has {root.noisy}"
            )
            rank = LIKELY if root.train_steps else NOTE
            yield Finding("eval-never-left", rank, f"{root.kind}: {told}", root.eval_line, {"steps": root.eval_steps})
        calls, evaluations = self._evaluations(root)
        if calls:
            told = f"{root.kind}: {calls} calls without gradients in training mode, in {evaluations} evaluations"
            rank = NOTE if self._is_part_of_training(root, evaluations) else LIKELY
            yield Finding(
                "train-mode-evaluation", rank, f"{told}; it has {root.noisy}", root.run_line, {"calls": calls}
            )
        if root.unused >= 2 and root.train_steps:
            told = f"{root.kind}: {root.unused} calls in eval mode with gradients, and no backward pass for them"
            yield Finding("grad-in-evaluation", NOTE, told, root.unused_line, {"calls": root.unused})
        if root.frozen:
            told = (
                f"{root.kind}: {len(root.frozen)} frozen layers in training mode: {', '.join(sorted(root.frozen)[:4])}"
            )
            yield Finding("frozen-batchnorm-moves", NOTE, told, NOWHERE, {"layers": len(root.frozen)})

    def _evaluations(self, root: Root) -> tuple[int, int]:
        """Calls that look like evaluation: several in a row on new data, or one now and then on the same."""
        runs = [*root.runs, *([(root.run, root.repeats)] if root.run else [])]
        runs = [(calls, again) for calls, again in runs if again < SAMPLED or 2 * again < calls]
        many = [calls for calls, _ in runs if calls >= 2]
        if many:
            return sum(many), len(many)
        again = sum(again for _, again in runs)
        return (len(runs), len(runs)) if len(runs) > 1 and again >= len(runs) - 1 else (0, 0)

    def _is_part_of_training(self, root: Root, evaluations: int) -> bool:
        """Before every step, and on new data each time: pseudo-labels, targets, or what a generator makes."""
        every_step = root.train_steps >= 10 and evaluations >= 0.8 * root.train_steps
        return self.alternating or (every_step and not any(again for _, again in root.runs))


def _noisy(module: nn.Module) -> str:
    found: dict[str, int] = {}
    for part in module.modules():
        drops = isinstance(part, _DropoutNd) and part.p > 0
        if drops or (isinstance(part, _BatchNorm) and part.track_running_stats and part.momentum is not None):
            found[type(part).__name__] = found.get(type(part).__name__, 0) + 1
    return ", ".join(f"{n} x {kind}" if n > 1 else kind for kind, n in found.items())


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if not isinstance(p, nn.parameter.UninitializedParameter))


def _moves_though_frozen(part: nn.Module) -> bool:
    frozen = isinstance(part, _BatchNorm) and part.affine and not part.weight.requires_grad
    return frozen and part.training and part.track_running_stats


def _recalibrates() -> bool:
    """True inside torch.optim.swa_utils.update_bn, which wants training mode."""
    frame = sys._getframe(1)
    while frame:
        if frame.f_code.co_name == "update_bn":
            return True
        frame = frame.f_back
    return False
