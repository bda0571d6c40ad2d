"""The learning rate over the run."""

from breakfix.examine.events import Probe
from breakfix.examine.findings import LIKELY, Finding
from breakfix.examine.lines import NOWHERE, Line

GONE = 1e-3  # of the highest
SHARE = 0.4  # of the steps


class Rates(Probe):
    """A rate that has fallen a thousandfold, and stays there, trains nothing."""

    name = "rates"

    def __init__(self, watch):
        super().__init__(watch)
        self.seen: dict[int, list[float]] = {}
        self.line: Line = NOWHERE

    def step_begins(self, optimizer, line: Line) -> None:
        rates = [group.get("lr") for group in optimizer.param_groups]
        if rates and all(isinstance(rate, float | int) for rate in rates):
            seen = self.seen.setdefault(id(optimizer), [])
            if len(seen) < 20_000:
                seen.append(max(rates))
            self.line = line

    def findings(self) -> list[Finding]:
        for rates in self.seen.values():
            top = max(rates)
            gone = sum(rate <= GONE * top for rate in rates)
            last = rates[-1] <= GONE * top
            if len(rates) >= 20 and last and gone >= SHARE * len(rates):
                told = f"{gone} of {len(rates)} steps ran below a thousandth of {top:g}; the last at {rates[-1]:.2g}"
                return [Finding("learning-rate-gone", LIKELY, told, self.line, {"steps": gone, "last": rates[-1]})]
        return []
