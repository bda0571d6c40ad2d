"""The release gate: a candidate goes out if it answers as today's model does, fast enough, for as long as it runs."""

import argparse
import gc
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, repeat

import torch
from torch import Tensor

Answer = tuple[Tensor, ...]
Model = Callable[[Tensor], Answer]

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 8e-2}
LIMIT, PAIRS, WARM = 1.2, 25, 100


def gate(reference: Model, candidate: Model, requests: Sequence[Tensor], clock: Callable[[], float]) -> dict[str, str]:
    """Why the candidate must not go out: reasons, each with a sentence; empty if it may."""
    reasons = replay(reference, candidate, requests)
    if "raises" not in reasons:
        reasons |= compare_times(reference, candidate, requests, clock)
    return reasons


def replay(reference: Model, candidate: Model, requests: Sequence[Tensor]) -> dict[str, str]:
    """What goes wrong while the whole traffic is answered once, each request as if it were the only one."""
    reasons, alive = {}, 0
    for i, request in enumerate(requests):
        given = request.clone()
        try:
            got = candidate(given)
        except Exception as error:
            return reasons | {"raises": f"request {i}: {type(error).__name__}: {error}"}
        if not torch.equal(given, request):
            reasons.setdefault("input", f"request {i} was written to")
        for reason, what in differences(got, reference(request)):
            reasons.setdefault(reason, f"request {i}, {what}")
        if i == WARM:
            alive = tensors_alive()
    if (more := tensors_alive() - alive) > 0:
        reasons["memory"] = f"{more} more tensors alive than after {WARM} requests"
    return reasons


def differences(got: Answer, want: Answer) -> Iterator[tuple[str, str]]:
    """Where an answer is not the reference's: the reason and the place."""
    if len(got) != len(want):
        yield "shape", f"{len(got)} outputs for {len(want)}"
    for i, (mine, wanted) in enumerate(zip(got, want, strict=False)):
        if mine.shape != wanted.shape:
            yield "shape", f"output {i}: {list(mine.shape)} for {list(wanted.shape)}"
        elif mine.dtype != wanted.dtype:
            yield "dtype", f"output {i}: {mine.dtype} for {wanted.dtype}"
        elif not (error := distance(mine, wanted)) <= TOLERANCE[wanted.dtype]:
            yield "value", f"output {i}: {error:.2g} away"


def distance(got: Tensor, want: Tensor) -> float:
    """The largest difference against the largest number wanted; inf if nan or inf are not where they belong."""
    got, want = got.double(), want.double()
    alike = (got == want) | (got.isnan() & want.isnan())  # an infinity is like itself
    error = torch.where(alike, 0.0, (got - want).abs()).max().item()
    size = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 0.0
    return float("inf") if math.isnan(error) else error / (size or 1.0)


def tensors_alive() -> int:
    """How many tensors somebody still holds."""
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def compare_times(
    reference: Model, candidate: Model, requests: Sequence[Tensor], clock: Callable[[], float]
) -> dict[str, str]:
    """The size at which the typical call of the candidate takes too long, if there is one."""
    for size, request in {len(request): request for request in requests}.items():
        pairs = [(timed(reference, request, clock), timed(candidate, request, clock)) for _ in range(PAIRS)]
        ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
        if not theirs <= LIMIT * ours:
            return {"latency": f"{theirs / ours:.2f} times as long with {size} rows"}
    return {}


def timed(model: Model, request: Tensor, clock: Callable[[], float]) -> float:
    given = request.clone()
    start = clock()
    model(given)
    return clock() - start


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
