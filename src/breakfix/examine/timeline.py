"""Where the time of each step went: waiting for data, backward, the optimizer, and the rest, mostly forward."""

from time import perf_counter

from breakfix.examine.events import Backward, Probe

KEPT = 400  # steps


class Timeline(Probe):
    """A step ends with an optimizer's step. Times are of the host: a GPU works on by itself."""

    name = "timeline"

    def __init__(self, watch):
        super().__init__(watch)
        self.steps: list[dict[str, float]] = []
        self.now = {"load": 0.0, "backward": 0.0, "step": 0.0}
        self.began = self.mark = perf_counter()
        self.own = 0.0

    def loaded(self, iterator, started: float, ended: float) -> None:
        self.now["load"] += ended - started

    def backward_begins(self, event: Backward) -> None:
        self.mark = perf_counter()

    def backward_ended(self, event: Backward) -> None:
        self.now["backward"] += perf_counter() - self.mark

    def step_begins(self, optimizer, line) -> None:
        self.mark = perf_counter()

    def step_ended(self, optimizer, line) -> None:
        ended = perf_counter()
        self.now["step"] += ended - self.mark
        whole = ended - self.began - (self.watch.seconds - self.own)
        if len(self.steps) < KEPT:
            self.steps.append({**self.now, "rest": max(0.0, whole - sum(self.now.values()))})
        self.now = dict.fromkeys(self.now, 0.0)
        self.began, self.own = ended, self.watch.seconds

    def figures(self) -> dict:
        steps = [{key: round(1e3 * value, 3) for key, value in step.items()} for step in self.steps]
        return {"timeline_ms": steps}
