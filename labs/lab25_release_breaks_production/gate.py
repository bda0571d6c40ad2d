"""The release gate: a candidate goes out if it answers as today's model does, fast enough, and does not fall over."""

import argparse
import random
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat

import torch
from torch import Tensor

Answer = tuple[Tensor, ...]
Model = Callable[[Tensor], Answer]

LIMIT, RUNS, FAILURES = 1.2, 1000, 0.01


def gate(reference: Model, candidate: Model, requests: Sequence[Tensor], clock: Callable[[], float]) -> dict[str, str]:
    """Why the candidate must not go out: reasons, each with a sentence; empty if it may."""
    example = requests[0]
    return {
        **functional(reference, candidate, example),
        **performance(reference, candidate, example, clock),
        **stability(candidate, example),
    }


def functional(reference: Model, candidate: Model, example: Tensor) -> dict[str, str]:
    """Both give the same answer."""
    for got, want in zip(candidate(example), reference(example), strict=False):
        if not torch.allclose(got.float(), want.float(), rtol=1e-3, atol=1e-5):
            return {"value": f"{(got - want).abs().max():.2g} away"}
    return {}


def performance(reference: Model, candidate: Model, example: Tensor, clock: Callable[[], float]) -> dict[str, str]:
    """One inference takes at most LIMIT times as long."""
    begin = clock()
    reference(example)
    middle = clock()
    candidate(example)
    ratio = (clock() - middle) / (middle - begin)
    return {"latency": f"{ratio:.2f} times as long"} if ratio > LIMIT else {}


def stability(candidate: Model, example: Tensor) -> dict[str, str]:
    """RUNS runs without a crash, without nan, and without running out of memory."""
    failed = 0
    for _ in range(RUNS):
        try:
            if any(torch.isnan(output).any() for output in candidate(example)):
                return {"value": "an answer is nan"}
        except torch.OutOfMemoryError:
            return {"memory": "out of memory"}
        except RuntimeError:
            failed += 1
    return {"raises": f"{failed} of {RUNS} runs"} if failed > FAILURES * RUNS else {}


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
