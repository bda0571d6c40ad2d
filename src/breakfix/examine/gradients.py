"""Whether gradients are cleared, and whether they reach the optimizer."""

import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor

from breakfix.examine.events import WALKS, Backward, Probe
from breakfix.examine.findings import CERTAIN, LIKELY, NOTE, Finding
from breakfix.examine.lines import NOWHERE, Line, own_line

FOLLOWED = 3  # parameters, the smallest ones: a copy of each is kept
LOOKS = 16  # steps at which all of an optimizer's gradients are looked at; then every 16th


@dataclass
class Followed:
    """A parameter, and copies of its value and gradient as the latest backward pass or step left them."""

    parameter: weakref.ref
    value: Tensor
    grad: Tensor
    stale: bool | None = None  # of the interval since the last update: None before a backward pass has been seen
    stale_intervals: int = 0
    clean_intervals: int = 0

    def close(self) -> None:
        """An update has been seen: what was found since the one before counts."""
        self.stale_intervals += self.stale is True
        self.clean_intervals += self.stale is False
        self.stale = None


class ZeroGrad(Probe):
    """A gradient that outlives the update it was used for, and is added to by the next backward pass.

    Several passes may add up before an update, and a pass may reach parameters of somebody else, as a generator's does
    in a GAN. So one clean beginning between two updates is enough to be innocent.
    """

    name = "zero_grad"

    def __init__(self, watch):
        super().__init__(watch)
        self.followed: dict[int, Followed] = {}
        self.done: list[Followed] = []
        self.line: Line = NOWHERE

    def backward_begins(self, event: Backward) -> None:
        for leaf in event.leaves or ():
            it = self._known(leaf)
            if it:
                self._judge(it, leaf)
                if it.stale and self.line == NOWHERE:
                    self.line = event.line

    def backward_ended(self, event: Backward) -> None:
        usable = [t for t in event.leaves or () if plain(t) and t.grad is not None and t.grad.layout == torch.strided]
        for leaf in sorted(usable, key=Tensor.numel)[:FOLLOWED]:
            if not self._known(leaf) and len(self.followed) < 8 * FOLLOWED and bool(leaf.grad.any()):
                self._follow(leaf)
        if event.first_look or self.watch.steps <= 2 * WALKS:
            for it in self.followed.values():
                self._copy(it, value=True)

    def step_ended(self, optimizer, line: Line) -> None:
        if self.watch.steps <= 64:
            for it in self.followed.values():
                self._copy(it, value=False)  # it may have been clipped or unscaled on the way

    def _copy(self, it: Followed, value: bool) -> None:
        p = it.parameter()
        if p is not None and p.grad is not None and p.grad.shape == it.grad.shape:
            it.grad = p.grad.clone()
            it.value = p.detach().clone() if value else it.value

    def findings(self) -> list[Finding]:
        every = [*self.done, *self.followed.values()]
        if not every:
            return []
        worst = max(every, key=lambda it: it.stale_intervals)
        stale, clean = worst.stale_intervals, worst.clean_intervals
        if stale < 2 or stale <= 2 * clean:
            return []
        told = f"in {stale} of {stale + clean} updates looked at, backward() began on the gradient of the one before"
        rank = LIKELY if clean else CERTAIN
        return [Finding("zero-grad", rank, told, self.line, {"stale": stale, "clean": clean}, 1)]

    def _judge(self, it: Followed, leaf: Tensor) -> None:
        if leaf.shape != it.value.shape:
            return
        grad = leaf.grad
        moved = not torch.equal(leaf, it.value)
        if moved:
            it.close()
        if grad is None or not torch.equal(grad, it.grad) or not bool(grad.any()):
            it.stale = False
        elif moved and it.stale is None:
            it.stale = True

    def _known(self, leaf: Tensor) -> Followed | None:
        it = self.followed.get(id(leaf))
        if it is not None and it.parameter() is not leaf:
            self.done.append(self.followed.pop(id(leaf)))
            return None
        return it

    def _follow(self, leaf: Tensor) -> None:
        self.followed[id(leaf)] = Followed(weakref.ref(leaf), leaf.clone(), leaf.grad.clone())


def plain(t: Tensor) -> bool:
    """A tensor of values that may be read: no fake, sharded or other wrapper."""
    return type(t) in (Tensor, torch.nn.Parameter) and t.layout == torch.strided and t.device.type != "meta"


@dataclass
class Steps:
    """What one optimizer has had in its steps."""

    kind: str
    parameters: int
    line: Line
    calls: int = 0
    looked: int = 0
    empty: int = 0  # steps without any gradient
    cleared: int = 0  # of them those that a backward pass had reached just before
    zero: int = 0  # steps whose gradients are all exactly zero, although a backward pass made some that are not
    elements: int = 0
    reached: set = field(default_factory=set, repr=False)  # parameters that ever had a gradient, by position
    lost: int = 0  # elements of those that never had one
    passes: int = 0  # backward passes that reached it, of those whose graph was looked at
    by_scaler: bool = False  # a GradScaler may have skipped all of its steps
    first: tuple | None = field(default=None, repr=False)  # a parameter, and its value at the beginning
    moved: bool = False


class Optimizers(Probe):
    """Whether an optimizer's steps have gradients to work with."""

    name = "optimizers"

    def __init__(self, watch):
        super().__init__(watch)
        self.seen: dict[int, tuple[weakref.ref, Steps]] = {}
        self.every: list[Steps] = []
        self.latest: set[int] = set()  # leaves of the backward passes since the last step
        self.backwards = 0

    def constructed(self, optimizer, line: Line) -> None:
        self.steps_of(optimizer, line)

    def backward_begins(self, event: Backward) -> None:
        self.backwards += 1
        if event.leaves:
            self.latest |= {id(leaf) for leaf in event.leaves}
            self._reach()

    def scaler_steps(self, scaler, optimizer) -> None:
        self.steps_of(optimizer, own_line()).by_scaler = True

    def _reach(self) -> None:
        """Count the pass for the optimizers whose parameters it reaches, and see whether somebody else moves those."""
        for ref, steps in self.seen.values():
            optimizer = ref()
            if optimizer is None or steps.calls:
                continue
            held = (p for group in optimizer.param_groups for p in group["params"])
            p = next((p for p in held if id(p) in self.latest and plain(p)), None)
            if p is not None:
                steps.passes += 1
                steps.first = steps.first or (weakref.ref(p), p.detach().clone())
                steps.moved = steps.moved or (steps.first[0]() is p and not torch.equal(steps.first[1], p))

    def step_begins(self, optimizer, line: Line) -> None:
        steps = self.steps_of(optimizer, line)
        steps.calls += 1
        if steps.calls > LOOKS and steps.calls % LOOKS:
            return
        held = [p for group in optimizer.param_groups for p in group["params"]]
        got = {i for i, p in enumerate(held) if p.grad is not None}
        steps.looked += 1
        steps.reached |= got
        steps.elements = sum(p.numel() for p in held)
        steps.lost = sum(p.numel() for i, p in enumerate(held) if i not in steps.reached and p.requires_grad)
        if not got:
            steps.empty += 1
            steps.cleared += any(id(p) in self.latest for p in held)
        elif self.latest and steps.calls <= LOOKS and not any(bool(held[i].grad.any()) for i in got if _dense(held[i])):
            steps.zero += any(id(p) in self.latest for p in held)

    def step_ended(self, optimizer, line: Line) -> None:
        self.latest.clear()

    def findings(self) -> list[Finding]:
        return [f for steps in self.every for f in self._judge(steps)]

    def figures(self) -> dict:
        return {"optimizers": [{"kind": s.kind, "parameters": s.parameters, "steps": s.calls} for s in self.every]}

    def _judge(self, s: Steps):
        who = f"{s.kind} over {s.parameters} parameters"
        figures = {"steps": s.calls, "looked": s.looked, "empty": s.empty, "cleared": s.cleared, "zero": s.zero}
        if s.cleared >= 2 and s.empty == s.looked:
            told = (
                f"{who}: in {s.cleared} steps of {s.looked} looked at, backward() had made gradients and none was left"
            )
            yield Finding("cleared-gradients", CERTAIN, told, s.line, figures, 1)
        elif s.zero >= 3 and s.zero == s.looked and s.looked == s.calls:
            told = f"{who}: in all {s.zero} steps every gradient was exactly zero"
            yield Finding("cleared-gradients", LIKELY, told, s.line, figures, 1)
        elif s.empty >= 2 and s.empty == s.looked and self.backwards >= 2:
            told = f"{who}: none had a gradient in any of {s.looked} steps, after {self.backwards} backward passes"
            yield Finding("no-gradient", CERTAIN, told, s.line, figures, 1)
        elif s.looked >= 3 and s.lost and s.looked > s.empty:
            n = s.parameters - len(s.reached)
            told = f"{who}: {n} of them, {s.lost / s.elements:.0%} of the elements, had no gradient in {s.looked} steps"
            rank = LIKELY if s.lost > 0.5 * s.elements else NOTE
            yield Finding("unused-parameters", rank, told, s.line, {"parameters": n, "share": s.lost / s.elements})
        elif s.passes >= 8 and not s.calls and not s.by_scaler and not s.moved and not self._stepped_elsewhere(s):
            told = f"{who}: step() was never called, after {s.passes} backward passes that reached its parameters"
            yield Finding("never-steps", CERTAIN, told, s.line, {"passes": s.passes})

    def _stepped_elsewhere(self, s: Steps) -> bool:
        """Whether another optimizer of as many parameters does step: this one may have been replaced."""
        return any(other.calls and other.parameters == s.parameters for other in self.every)

    def steps_of(self, optimizer, line: Line) -> Steps:
        known = self.seen.get(id(optimizer))
        if known and known[0]() is optimizer:
            return known[1]
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        steps = Steps(type(optimizer).__name__, count, line)
        self.seen[id(optimizer)] = (weakref.ref(optimizer), steps)
        self.every.append(steps)
        return steps


def _dense(p: Tensor) -> bool:
    return plain(p) and p.grad.layout == torch.strided
