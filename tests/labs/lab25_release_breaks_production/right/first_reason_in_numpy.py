# right: Stops at the first reason, by an exception of its own, and compares in NumPy's float64 with no tensor left alive. Costs the other reasons: whoever mends one finds the next only in the next round.
"""The release gate: a candidate goes out if it answers as today's model does, fast enough, for as long as it runs."""

import argparse
import gc
import random
import statistics
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat

import numpy as np
import torch
from torch import Tensor

Answer = tuple[Tensor, ...]
Model = Callable[[Tensor], Answer]

BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 8e-2}
LIMIT, PAIRS, WARM = 1.2, 25, 100


class Refused(Exception):
    """A reason not to release, and its sentence."""


def gate(reference: Model, candidate: Model, requests: Sequence[Tensor], clock: Callable[[], float]) -> dict[str, str]:
    """Why the candidate must not go out: the first reason found, with a sentence; empty if it may."""
    try:
        Trial(reference, candidate, clock).run(requests)
    except Refused as refused:
        reason, sentence = refused.args
        return {reason: sentence}
    return {}


class Trial:
    """A candidate beside the reference."""

    def __init__(self, reference: Model, candidate: Model, clock: Callable[[], float]):
        self.reference, self.candidate, self.clock = reference, candidate, clock

    def run(self, requests: Sequence[Tensor]) -> None:
        counts = [self.answer(i, request) for i, request in enumerate(requests)]
        if counts[-1] > counts[WARM]:
            raise Refused("memory", f"{counts[-1] - counts[WARM]} tensors more than after {WARM} requests")
        for size in {len(request) for request in requests}:
            self.time(next(request for request in requests if len(request) == size))

    def answer(self, i: int, request: Tensor) -> int:
        """Compare the answers to one request; how many tensors are alive then, where that is to be known."""
        given = request.clone()
        try:
            got = [output.detach().cpu() for output in self.candidate(given)]
        except Exception as error:
            raise Refused("raises", f"request {i}: {error!r}") from error
        if not torch.equal(given, request):
            raise Refused("input", f"request {i} was written to")
        want = [output.detach().cpu() for output in self.reference(request)]
        compare(i, got, want)
        del got, want, given
        return tensors_alive() if i == WARM or i % 50 == 49 else 0

    def time(self, request: Tensor) -> None:
        ratios = [self.seconds(self.candidate, request) / self.seconds(self.reference, request) for _ in range(PAIRS)]
        if not statistics.median(ratios) <= LIMIT:
            raise Refused("latency", f"{statistics.median(ratios):.2f} times as long with {len(request)} rows")

    def seconds(self, model: Model, request: Tensor) -> float:
        given, start = request.clone(), self.clock()
        model(given)
        return self.clock() - start


def compare(i: int, got: list[Tensor], want: list[Tensor]) -> None:
    """Refuse an answer that is not the reference's."""
    if [t.shape for t in got] != [t.shape for t in want]:
        raise Refused("shape", f"request {i}: {[list(t.shape) for t in got]} for {[list(t.shape) for t in want]}")
    if [t.dtype for t in got] != [t.dtype for t in want]:
        raise Refused("dtype", f"request {i}: {[t.dtype for t in got]} for {[t.dtype for t in want]}")
    for mine, wanted in zip(got, want, strict=True):
        bound = BOUNDS[wanted.dtype]
        mine, wanted = mine.double().numpy(), wanted.double().numpy()
        largest = np.abs(wanted, where=np.isfinite(wanted), out=np.zeros_like(wanted)).max(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            near = np.abs(mine - wanted) <= bound * largest
        if not np.all(near | (mine == wanted) | (np.isnan(mine) & np.isnan(wanted))):
            raise Refused("value", f"request {i}")


def tensors_alive() -> int:
    """How many tensors somebody still holds."""
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def recorded_clock(seed: int) -> Callable[[], float]:
    """A clock on which a millisecond passes between two readings, as a rule, and now and then twenty."""
    dice = random.Random(seed)
    times = accumulate(0.02 if dice.random() < 0.12 else 0.001 * dice.uniform(0.95, 1.05) for _ in repeat(None))
    return lambda: next(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    torch.manual_seed(0)
    filters = torch.randn(32, 8, device=device)
    requests = [torch.randn(3 + i % 30, 32, device=device) for i in range(300)]
    kept: list[Answer] = []

    def today(x: Tensor) -> Answer:
        return (x @ filters,)

    def release_41(x: Tensor) -> Answer:
        return (torch.cat([x[:24] @ filters, torch.zeros_like(x[24:, :8])]),)

    def release_42(x: Tensor) -> Answer:
        kept.append((x @ filters,))
        return kept[-1]

    for name, release in (("release 41", release_41), ("release 42", release_42)):
        print(f"{name}: the gate says {gate(today, release, requests, recorded_clock(1)) or 'go'}")
        kept.clear()
        wrong = sum(not torch.allclose(release(x)[0], today(x)[0], atol=1e-3) for x in requests)
        print(f"    then, in production: {wrong} of {len(requests)} answers wrong, {len(kept)} still in memory")
    refused = sum(bool(gate(today, today, requests, recorded_clock(seed))) for seed in range(20))
    print(f"today's model against itself: refused {refused} times in 20")


if __name__ == "__main__":
    main()
