"""Mixed precision: what happens to gradients between the scaled backward pass and the optimizer's step."""

import weakref

import torch
from torch import Tensor

from breakfix.examine.events import Backward, Probe
from breakfix.examine.findings import CERTAIN, LIKELY, NOTE, Finding
from breakfix.examine.gradients import plain
from breakfix.examine.lines import NOWHERE, Line, own_line
from breakfix.probes import _torch

LOW = (torch.float16, torch.bfloat16)


class Scaling(Probe):
    """Follows the gradients from the scaled loss to unscale_() or step() of the GradScaler."""

    name = "scaling"

    def __init__(self, watch):
        super().__init__(watch)
        self.scaler = None
        self.is_scaled = self.pending = self.in_scaler = False
        self.unscaled: set[int] = set()  # parameters
        self.versions: list[tuple[weakref.ref, int]] = []
        self.clips = self.steps = self.by_hand = self.scaled_passes = 0
        self.clip_line = self.step_line = self.hand_line = NOWHERE
        self.scale = 0.0

    def scaled(self, scaler, *outputs) -> None:
        self.scaler, self.pending = scaler, self.pending or scaler.is_enabled()

    def backward_begins(self, event: Backward) -> None:
        self.in_scaler = False

    def backward_ended(self, event: Backward) -> None:
        if not self.pending:
            return
        self.is_scaled, self.pending = True, False
        self.scaled_passes += 1
        self.unscaled.clear()
        leaves = [t for t in event.leaves or () if plain(t) and t.grad is not None][:4]
        self.versions = [(weakref.ref(t), t.grad._version) for t in leaves]

    def clipped(self, parameters: list[Tensor], line: Line) -> None:
        if self.is_scaled and not any(id(p) in self.unscaled for p in parameters):
            self.clips += 1
            self.clip_line, self.scale = line, self.scale or self.scaler.get_scale()

    def unscaling(self, scaler, optimizer) -> None:
        self.unscaled |= {id(p) for group in optimizer.param_groups for p in group["params"]}
        if self.versions and all(
            (t := r()) is not None and t.grad is not None and t.grad._version > v for r, v in self.versions
        ):
            self.by_hand += 1
            self.hand_line, self.scale = own_line(), self.scale or scaler.get_scale()
        self.versions = []

    def scaler_steps(self, scaler, optimizer) -> None:
        self.in_scaler = True

    def scaler_updated(self, scaler, *args) -> None:
        self.is_scaled = self.in_scaler = False

    def step_begins(self, optimizer, line: Line) -> None:
        held = (id(p) for group in optimizer.param_groups for p in group["params"])
        if self.is_scaled and not self.in_scaler and not any(key in self.unscaled for key in held):
            self.steps += 1
            self.step_line, self.scale = line, self.scale or self.scaler.get_scale()

    def step_ended(self, optimizer, line: Line) -> None:
        self.in_scaler = False

    def findings(self) -> list[Finding]:
        found = []
        scale = f"the scale was {self.scale:,.0f}"
        if self.clips:
            told = f"clip_grad ran {self.clips} times in {self.scaled_passes} passes on scaled gradients; {scale}"
            found.append(Finding("clip-while-scaled", CERTAIN, told, self.clip_line, {"times": self.clips}))
        elif self.by_hand > 1:
            told = f"gradients were changed in place {self.by_hand} times between backward() and unscaling; {scale}"
            found.append(Finding("clip-while-scaled", LIKELY, told, self.hand_line, {"times": self.by_hand}))
        if self.steps > 1:
            told = f"in {self.steps} steps the gradients had not been unscaled; {scale}"
            found.append(Finding("step-while-scaled", CERTAIN, told, self.step_line, {"times": self.steps}))
        return found


class HalfPrecision(Probe):
    """float16 gradients that nobody scales, and low-precision weights that do not move."""

    name = "half_precision"

    def __init__(self, watch):
        super().__init__(watch)
        self.scaling = False
        self.passes, self.zeros, self.elements, self.line = 0, 0, 0, NOWHERE
        self.before: list[tuple[Tensor, Tensor]] = []
        self.stuck, self.asked, self.steps, self.step_line, self.dtype = 0, 0, 0, NOWHERE, ""

    def scaled(self, scaler, *outputs) -> None:
        self.scaling = self.scaling or scaler.is_enabled()

    def backward_ended(self, event: Backward) -> None:
        if self.scaling or not event.first_look or not any(map(_is_half, event.nodes)):
            return
        grads = [t.grad for t in event.leaves if plain(t) and t.grad is not None and plain(t.grad)]
        self.passes += 1
        self.line = event.line
        self.zeros += sum(int((g == 0).sum()) for g in grads)
        self.elements += sum(g.numel() for g in grads)

    def step_begins(self, optimizer, line: Line) -> None:
        if self.watch.steps > 64:
            return
        low = [p for g in optimizer.param_groups for p in g["params"] if p.dtype in LOW and p.grad is not None]
        small = sorted((p for p in low if plain(p) and p.numel() < 1 << 18), key=Tensor.numel)[-3:]
        self.before = [(p, p.detach().clone()) for p in small]

    def step_ended(self, optimizer, line: Line) -> None:
        if not self.before:
            return
        for p, before in self.before:
            wanted = p.grad != 0 if p.grad is not None else torch.zeros_like(p, dtype=torch.bool)
            self.asked += int(wanted.sum())
            self.stuck += int((wanted & (p.detach() == before)).sum())
            self.dtype = str(p.dtype).removeprefix("torch.")
        self.steps, self.step_line, self.before = self.steps + 1, line, []

    def findings(self) -> list[Finding]:
        found = []
        if self.passes > 1 and not self.scaling:
            share = self.zeros / max(1, self.elements)
            told = f"no GradScaler; {share:.0%} of the gradients' {self.elements // self.passes:,} elements are zero"
            rank = LIKELY if share >= 0.01 else NOTE
            found.append(Finding("half-without-scaler", rank, told, self.line, {"zeros": share}))
        if self.steps >= 8 and self.stuck > 0.5 * self.asked > 0:
            share = self.stuck / self.asked
            told = f"{share:.0%} of the {self.dtype} weights with a gradient stayed as they were, {self.steps} steps"
            found.append(Finding("lost-updates", LIKELY, told, self.step_line, {"stuck": share}))
        return found


def _is_half(node) -> bool:
    try:
        return any(out.dtype == torch.float16 for out in _torch.outputs_of(node))
    except (AttributeError, RuntimeError):
        return False
