"""The first loss or gradient that is not finite, and the operator that made it so."""

import re

import torch
from torch import Tensor

from breakfix.examine.events import Backward, Probe
from breakfix.examine.findings import CERTAIN, Finding
from breakfix.examine.gradients import plain
from breakfix.examine.lines import NOWHERE, Line, kind
from breakfix.examine.losses import op
from breakfix.probes import _torch

TRACED = 10  # passes for which torch notes where each operator was called, once something was not finite
RARELY = 50  # steps between two reads of a GPU's flag: a read waits


class Finite(Probe):
    """Looks at every loss on a CPU. On a GPU it keeps a flag there and reads it now and then."""

    name = "finite"

    def __init__(self, watch):
        super().__init__(watch)
        self.loss: Finding | None = None
        self.gradient: Finding | None = None
        self.losses, self.bad, self.traced, self.poles, self.cause = 0, 0, 0, "", ""
        self.flags: dict[torch.device, Tensor] = {}
        self.alarmed = False
        self.traced_line: Line = NOWHERE

    def backward_begins(self, event: Backward) -> None:
        losses = [t for t in event.tensors if plain(t) and t.is_floating_point()]
        self.losses += 1
        bad = self.alarmed or any(t.device.type == "cpu" for t in losses)
        if not (bad and any(not bool(t.isfinite().all()) for t in losses)):
            self._on_cards(losses)
            if event.first_look and not self.poles:
                self.poles = next(filter(None, map(_pole, _in_order(event.nodes))), "")
        else:
            self.bad += 1
            self._explain(event)

    def backward_ended(self, event: Backward) -> None:
        if self.traced and self.losses >= self.traced:
            self._trace(False)

    def step_begins(self, optimizer, line: Line) -> None:
        if self.gradient or self.loss or getattr(optimizer, "found_inf", None) is not None:
            return
        if self.watch.steps > 64 and self.watch.steps % (8 if self.watch.is_dear() else 1):
            return
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None and plain(p.grad)]
        if not grads or (grads[0].device.type != "cpu" and self.watch.steps % RARELY):
            return
        if not bool(torch.nn.utils.get_total_norm(grads).isfinite()):
            self._tell_gradient(grads, line)

    def findings(self) -> list[Finding]:
        if self.loss:
            self.loss.figures |= {"losses": self.bad, "of": self.losses}
            if self.traced_line != NOWHERE:
                self.loss.line = self.traced_line
        return [self.gradient or self.loss] if self.gradient or self.loss else []  # the second follows from the first

    def _on_cards(self, losses: list[Tensor]) -> None:
        for t in losses:
            if t.device.type != "cpu":
                flag = self.flags.setdefault(t.device, torch.zeros((), dtype=torch.bool, device=t.device))
                flag |= ~t.detach().isfinite().all()
                if self.losses % RARELY == 0 or self.losses == 3:
                    self.alarmed = self.alarmed or bool(flag)

    def _tell_gradient(self, grads: list[Tensor], line: Line) -> None:
        bad = sum(not bool(g.isfinite().all()) for g in grads)
        told = f"step {self.watch.steps}: {bad} of {len(grads)} gradients hold nan or inf"
        told += f"; behind the loss is {self.poles}" if self.poles else ""
        figures = {"step": self.watch.steps, "gradients": bad}
        self.gradient = Finding("non-finite-gradient", CERTAIN, told, line, figures, self.watch.steps)

    def _explain(self, event: Backward) -> None:
        first = self.loss is None
        if not first and (self.traced_line != NOWHERE or not self.traced):
            return
        nodes = event.nodes or event.look()
        cause, node = _cause(nodes)
        if first:
            self.cause = op(node) if node is not None and not hasattr(node, "variable") else ""
            told = f"backward pass {event.number}: the loss is {float(event.tensors[0].detach().float().mean())}"
            told += f"; {cause}" if cause else "; what was saved for backward is finite up to the loss"
            self.loss = Finding("non-finite", CERTAIN, told, event.line, {}, event.number)
            self._trace(True)
            return
        same = [
            n for n in _in_order(nodes) if op(n) == self.cause
        ]  # by now the weights may be nan, and all that follows
        if line := next(filter(None, map(_traced, [*same, *filter(None, [node])])), None):
            self.traced_line = line
            self._trace(False)

    def _trace(self, on: bool) -> None:
        """Have torch note where each operator is called: its own anomaly mode, which does not stop at anything then."""
        if on and (torch.is_anomaly_enabled() or _torch.compilations()):
            return
        self.traced = self.losses + TRACED if on else 0
        torch.autograd.set_detect_anomaly(on, check_nan=not on)


def _in_order(nodes: list) -> list:
    """As the operators ran: PyTorch numbers the nodes."""
    return sorted((n for n in nodes if not hasattr(n, "variable")), key=_torch.order_of)


def _cause(nodes: list) -> tuple[str, object]:
    """The first operator whose saved values tell, in words, and its node."""
    for node in _in_order(nodes):
        if told := _pole(node, loud=True) or _not_finite(node):
            return told, node
    bad = [n for n in nodes if hasattr(n, "variable") and plain(n.variable) and not bool(n.variable.isfinite().all())]
    if bad:
        return f"weights of shape {list(bad[0].variable.shape)} are not finite already", bad[0]
    return "", None


def _not_finite(node) -> str:
    for name, value in _torch.saved_named(node):
        if isinstance(value, Tensor) and value.is_floating_point() and plain(value.detach()):
            bad = int((~value.detach().isfinite()).sum())
            if bad and not _masked(node, name, value):
                what = "made" if name in ("result", "output") else "was given"
                return f"{op(node)} {what} {bad} of {value.numel()} values that are not finite ({name})"
    return ""


def _masked(node, name: str, value: Tensor) -> bool:
    """-inf where attention or a softmax is masked is nothing to tell."""
    return op(node) in ("LogSoftmax", "Softmax", "MaskedFill", "Add") and not bool(value.detach().isnan().any())


def _pole(node, loud: bool = False) -> str:
    """An operator at a place where it, or its derivative, is infinite."""
    name, saved = op(node), {k: v for k, v in _torch.saved_named(node) if isinstance(v, Tensor)}
    given, made = saved.get("self"), saved.get("result")
    if name in ("Log", "Log2", "Log10") and given is not None and (n := _count(given <= 0)):
        return f"{name} was given {n} values of {given.numel()} that are zero or less"
    if name == "Div" and (other := saved.get("other")) is not None and (n := _count(other == 0)):
        return f"Div divided by {n} zeros"
    if name in ("Sqrt", "Rsqrt") and made is not None and (n := _count((made == 0) | made.isinf())):
        return f"{name} was given {n} zeros of {made.numel()}: its derivative is infinite there"
    if name == "Exp" and loud and made is not None and (n := _count(made.isinf())):
        return f"Exp overflowed in {n} of {made.numel()} values"
    return ""


def _count(where: Tensor) -> int:
    return int(where.detach().sum())


def _traced(node) -> Line | None:
    """The line of the person's own code that called a node's operator, where torch has noted it."""
    text = "".join((node.metadata or {}).get("traceback_", []))
    for path, number, function in reversed(re.findall(r'File "(.+?)", line (\d+), in (.+)', text)):
        if kind(path) == "own":
            return Line(path, int(number), function.strip())
    return None
