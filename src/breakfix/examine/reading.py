"""How often values are read from tensors, line by line."""

from collections import Counter

from torch import Tensor

from breakfix.examine.events import Probe
from breakfix.examine.findings import LIKELY, NOTE, Finding
from breakfix.examine.lines import Line, kind, own_frame

PER_STEP = 3  # fewer are what a log needs
FOLLOWED = 5000  # reads whose line is looked up


class Reading(Probe):
    """Counts .item() and its kin. On a CPU nobody waits for them, so that they are a note there."""

    name = "reads"

    def __init__(self, watch):
        super().__init__(watch)
        self.lines: Counter[Line] = Counter()
        self.count, self.on_card = 0, 0

    def note(self, tensor: Tensor, frame) -> None:
        """A read. It is called for each, so that it does little."""
        if self.watch.steps == 0:
            return
        self.count += 1
        self.on_card += tensor.device.type not in ("cpu", "meta")
        if self.count <= FOLLOWED and not _in_optimizer(frame) and (own := own_frame(frame)) is not None:
            self.lines[Line(own.f_code.co_filename, own.f_lineno, own.f_code.co_name)] += 1

    def findings(self) -> list[Finding]:
        steps = min(self.watch.steps, FOLLOWED)
        each = {line: n for line, n in self.lines.items() if n >= 0.5 * steps and kind(line.path) == "own"}
        per_step = sum(each.values()) / steps if steps >= 5 else 0.0
        if per_step < PER_STEP:
            return []
        line = max(each, key=each.get)
        where = "on the card" if self.on_card else "on the CPU, where it costs nothing"
        places = f"{len(each)} lines; {each[line] / steps:.1f} at this one" if len(each) > 1 else "this line"
        told = f"{per_step:.1f} reads per step {where}, at {places}"
        rank = LIKELY if self.on_card > 0.5 * self.count else NOTE
        return [Finding("device-reads", rank, told, line, {"per_step": per_step, "lines": len(each)})]

    def figures(self) -> dict:
        return {"reads": {"count": self.count, "on_card": self.on_card}}


def _in_optimizer(frame) -> bool:
    """Adam reads its own step counter, which is kept on the CPU."""
    path = frame.f_code.co_filename if frame else ""
    return "torch/optim" in path.replace("\\", "/") or "grad_scaler" in path
