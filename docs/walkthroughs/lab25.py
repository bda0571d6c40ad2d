# %% [markdown]
# # lab25, walked through: the gate says go, and production breaks
#
# Two releases went out and did harm. And the model that runs today is refused now and then.
#
# This notebook judges the broken gate and the fixed one, and then takes the three parts of the broken one apart: what
# can a comparison see, what can a clock, and what can a thousand runs? **It gives the cause away.** Every number was
# computed when this page was built.

# %%
import statistics
from itertools import count

import torch
from IPython.display import HTML, Markdown

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab25"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=20) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# One line per check: the first candidate that the broken gate judged wrongly.

# %%
Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed))))

# %% [markdown]
# ## What a comparison can see
#
# Nine candidates, and for each the share of requests on which a comparison finds a difference. The first five are
# honest, the other four are not. `allclose` has the tolerances of the article, `assert_close` its defaults, and the
# last column is the largest difference over the largest number wanted.

# %%
measure, given = lab.measurement, lab.measurement.inputs(seed=20)


def unlike(test, got, want):
    try:
        return test(got, want) is False
    except (AssertionError, RuntimeError):
        return True


tests = {
    "allclose": lambda g, w: torch.allclose(g, w, rtol=1e-3, atol=1e-5, equal_nan=True),
    "assert_close": lambda g, w: torch.testing.assert_close(g, w, equal_nan=True),
}
names = [n for n, c in measure.CASES.items() if c.group == "good" and c.kind != "twins"]
names += ["far sensors are silent", "the other of two bands", "one column for all", "a band off, bfloat16"]
print(f"{'':28}  {'  '.join(f'{t:>12}' for t in tests)}  largest")
for name in names:
    reference, candidate, requests, _ = measure.put(name, given, 20, torch.device("cpu"))
    answers = [(candidate(x), reference(x)) for x in requests]
    shares = [
        sum(any(unlike(test, g, w) for g, w in zip(*pair, strict=False)) for pair in answers) / len(answers)
        for test in tests.values()
    ]
    finite = [(g - w, w) for pair in answers for g, w in zip(*pair, strict=False)]
    largest = max((d.nan_to_num(0).abs().max() / w.nan_to_num(0).abs().max()).item() for d, w in finite)
    print(f"{name:28}  {'  '.join(f'{share:12.0%}' for share in shares)}  {largest:.0e}")

# %% [markdown]
# No single pair of tolerances tells the honest from the others; a bound that goes with the size of what is wanted and
# with its dtype does. And no bound sees the column that stands for all: that is a matter of shape.
#
# ## What a clock can see
#
# The reference against itself, so every ratio should be 1, on the machine on which 12 of 100 calls take twenty times as
# long. Forty tries of each way to compare.

# %%
reference, _, requests, clock = measure.put("on a busy machine", given, 20, torch.device("cpu"))


def seconds():
    begin = clock()
    reference(requests[0])
    return clock() - begin


def ratios(pairs, summary):
    tries = [list(zip(*((seconds(), seconds()) for _ in range(pairs)), strict=True)) for _ in range(40)]
    return [summary(theirs) / summary(ours) for ours, theirs in tries]


ways = {"single shot": (1, min), "mean of 25": (25, statistics.fmean), "median of 25": (25, statistics.median)}
for way, (pairs, summary) in ways.items():
    found = ratios(pairs, summary)
    refused = sum(ratio > 1.2 for ratio in found)
    print(f"{way:13}  {min(found):.2f} to {max(found):5.2f}, refused {refused:2} times in 40")

# %% [markdown]
# ## What a thousand runs can see
#
# Three candidates that keep something of their requests, and one with a cache that is full after 64. Tensors alive
# after 100 calls and after 1000: over all requests, over the first of them again and again, and over all a second time.

# %%
alive = subject.load(lab.solution.read_bytes(), str(lab.solution)).tensors_alive


def grown(candidate, requests):
    counts, calls = {}, count(1)
    for x in requests:
        candidate(x)
        if (call := next(calls)) in (100, 1000):
            counts[call] = alive()
    return counts[1000] - counts[100]


print(f"{'':20}  all  the first  all again")
for name in ("a list that grows", "a dict that grows", "one in twenty kept", "the last 64 kept"):
    _, candidate, requests, _ = measure.put(name, given, 20, torch.device("cpu"))
    found = [grown(candidate, requests), 0, grown(candidate, requests)]
    _, candidate, requests, _ = measure.put(name, given, 20, torch.device("cpu"))
    found[1] = grown(candidate, [requests[0]] * 1000)
    print(f"{name:20} {found[0]:4} {found[1]:10} {found[2]:10}")

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
