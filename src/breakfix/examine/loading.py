"""Whether a training loop waits for its data, and whether its epochs differ."""

import weakref
from dataclasses import dataclass
from time import perf_counter

from breakfix.examine.events import Backward, Probe
from breakfix.examine.findings import CERTAIN, LIKELY, Finding
from breakfix.examine.lines import Line, own_line

SHARE, EACH, IN_ALL = 0.5, 0.008, 0.3  # of the loop's time, and seconds: less is not worth a word


@dataclass
class Loop:
    """One pass over a loader."""

    iterator: weakref.ref
    workers: int
    line: Line
    began: float
    ended: float = 0.0
    waited: float = 0.0
    first: float = 0.0  # seconds until the first batch: workers start
    batches: int = 0
    trained: bool = False


class Loading(Probe):
    """Times each batch from the asking to the having, against the whole loop."""

    name = "loading"

    def __init__(self, watch):
        super().__init__(watch)
        self.loops: dict[int, Loop] = {}
        self.past: list[Loop] = []
        self.current: Loop | None = None
        self.epochs: dict[int, tuple[weakref.ref, list, Line]] = {}

    def loaded(self, iterator, started: float, ended: float) -> None:
        loop = self.loops.get(id(iterator))
        if loop is None or loop.iterator() is not iterator or loop.ended > ended:
            if loop:
                self.past.append(loop)
            workers = getattr(iterator, "_num_workers", 0)
            loop = self.loops[id(iterator)] = Loop(weakref.ref(iterator), workers, own_line(), started)
            loop.first = ended - started
        loop.waited += ended - started
        loop.ended = ended
        loop.batches += 1
        self.current = loop

    def backward_begins(self, event: Backward) -> None:
        if self.current:
            self.current.trained = True

    def step_ended(self, optimizer, line: Line) -> None:
        if self.current:
            self.current.ended = perf_counter()

    def sampled(self, sampler, *args) -> None:
        if sampler.shuffle:
            known = self.epochs.setdefault(id(sampler), (weakref.ref(sampler), [], own_line()))
            known[1].append(sampler.epoch)

    def findings(self) -> list[Finding]:
        found = []
        loops = [loop for loop in (*self.past, *self.loops.values()) if loop.trained]
        waited, batches = sum(loop.waited for loop in loops), sum(loop.batches for loop in loops)
        whole = sum(loop.ended - loop.began for loop in loops)
        if whole and batches >= 5 and waited > SHARE * whole and waited > EACH * batches and waited > IN_ALL:
            first = sum(loop.first for loop in loops)
            told = f"{waited / whole:.0%} of the loop's {whole:.1f} s went by waiting for {batches} batches, "
            told += (
                f"{1e3 * waited / batches:.0f} ms each ({1e3 * first / len(loops):.0f} ms for the first of an epoch); "
            )
            told += f"num_workers={loops[0].workers}"
            figures = {"share": waited / whole, "seconds": waited, "batches": batches}
            found.append(Finding("loader-wait", LIKELY, told, loops[0].line, figures))
        for _, epochs, line in self.epochs.values():
            if len(epochs) > 1 and len(set(epochs)) == 1:
                told = f"a DistributedSampler with shuffle=True was iterated {len(epochs)} times at epoch {epochs[0]}"
                rank = CERTAIN if len(epochs) > 2 else LIKELY
                found.append(Finding("same-epoch-order", rank, told, line, {"times": len(epochs)}))
        return found

    def figures(self) -> dict:
        loops = [*self.past, *self.loops.values()]
        whole, waited = sum(loop.ended - loop.began for loop in loops), sum(loop.waited for loop in loops)
        return {"loader": {"batches": sum(loop.batches for loop in loops), "share": waited / whole if whole else 0.0}}
