"""What torch.compile did, from what it keeps itself: nothing runs while it compiles."""

import re
import sys
from collections import Counter

from breakfix.examine.events import Probe
from breakfix.examine.findings import CERTAIN, LIKELY, NOTE, Finding
from breakfix.examine.lines import Line
from breakfix.probes import _torch

AGAIN, STORM = 3, 5  # recompilations of one function: shapes, modes and gradients take a few in good code
BREAKS = 5
RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")


class Compiling(Probe):
    """Reads PyTorch's own records of its compilations, which keep the latest 64."""

    name = "compiling"

    def __init__(self, watch):
        super().__init__(watch)
        self.seen: dict[tuple, dict[str, str]] = {}

    def step_ended(self, optimizer, line) -> None:
        if self.watch.steps & (self.watch.steps - 1) == 0:
            self._look()

    def findings(self) -> list[Finding]:
        self._look()
        return [*self._again(), *self._breaks()]

    def figures(self) -> dict:
        again = sum(bool(told["recompiled"]) for told in self.seen.values())
        return {"compile": {"compilations": len(self.seen), "recompilations": again}}

    def _look(self) -> None:
        if "torch._dynamo" in sys.modules:
            self.seen |= {key: told for key, told in _torch.compilations()}

    def _again(self):
        reasons: dict[str, list[str]] = {}
        gave_up: set[str] = set()
        for told in self.seen.values():
            if told["failed"]:
                gave_up.add(told["function"])
            elif told["recompiled"]:
                reasons.setdefault(told["function"], []).append(told["recompiled"])
        for function, why in reasons.items():
            limit = len(why) >= 7 or function in gave_up
            if len(why) >= AGAIN:
                told = f"{function.partition(' ')[0]} was compiled {len(why) + 1} times; last because {why[-1]}"
                told += ", and then given up" if limit else ""
                rank = CERTAIN if limit else LIKELY if len(why) >= STORM else NOTE
                yield Finding("recompiles", rank, told, _line(function), {"again": len(why), "gave_up": limit})

    def _breaks(self):
        found: Counter[tuple[str, str, str]] = Counter()
        for told in self.seen.values():
            match = RESUMED.match(told["function"])
            if match and not told["recompiled"]:
                found[(match[1], match[2], told["function"])] += 1
        if found:
            name, number, function = next(iter(found))
            told = f"{len(found)} graph breaks: in {', '.join(f'{n} at line {at}' for n, at, _ in list(found)[:4])}"
            line = Line(_line(function).path, int(number), name)
            rank = LIKELY if len(found) >= BREAKS else NOTE
            yield Finding("graph-breaks", rank, told, line, {"breaks": len(found)})
        again = {told["function"] for told in self.seen.values() if told["recompiled"]}
        for told in self.seen.values():
            if told["failed"] and told["function"] not in again:
                why = f"{told['function'].partition(' ')[0]} runs without being compiled: {told['failed']}"
                yield Finding("graph-breaks", LIKELY, why, _line(told["function"]), {"skipped": told["function"]})


def _line(function: str) -> Line:
    """From "forward (train.py:32)"."""
    match = re.search(r"^(\S+) \((.+):(\d+)\)$", function)
    return Line(match[2], int(match[3]), match[1]) if match else Line("", 0, function)
