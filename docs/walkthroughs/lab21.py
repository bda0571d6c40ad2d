# %% [markdown]
# # lab21, walked through: two ranks train one model, and do not agree
#
# A classifier has trained on one card for a year. On two, one rank logs an epoch, the other none, and both wait.
#
# This notebook judges the broken file and the fixed one, looks at where the ranks part, and then at faults that no hang
# gives away. **It gives the causes away.** Every number was computed when this page was built.

# %%
from itertools import chain

import numpy as np
from IPython.display import HTML, Markdown, display
from torch.utils.data import DistributedSampler

from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab21"]
others = ("sampler_without_set_epoch", "statistics_of_rank_0", "join_every_epoch")
files = {"broken": lab.starter, "fixed": lab.solution}
files |= {v.path.stem: v.path for v in lab.variants if v.path.stem in others}
with Engine() as engine:
    verdicts = {name: engine.judge(lab, path, seed=21) for name, path in files.items()}

for name, verdict in verdicts.items():
    earned, possible = verdict.points
    print(f"{name:26}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {verdicts['fixed'].versions['torch']}, {verdicts['fixed'].device}, seed {verdicts['fixed'].seed}")

# %% [markdown]
# ## The evidence
#
# One, two and three ranks, forked on one machine. Before each collective they told each other what they were about to
# call. One line per check: the figure on which the broken file failed. Then the last collectives of three ranks: in the
# last column of the broken file, rank 0 offers one number and the others a gradient.

# %%
seen = {name: decode(verdict.frame) for name, verdict in verdicts.items()}
display(Markdown(tables.markdown(tables.deciding(tables.rows(verdicts["broken"], verdicts["fixed"])))))
display(HTML(figures.draw(lab, seen["broken"], seen["fixed"])))

# %% [markdown]
# ## How they came apart
#
# Two ranks, 41 recordings. The last calls of each rank, as numbers that went in. Rank 0 had a sixth batch in its first
# epoch; rank 1 met it with the first batch of its second. That is no error: the sizes fit. It goes wrong only when
# rank 0 validates.

# %%
broken = seen["broken"]
print(broken["two.parted"][0], end="\n\n")
for rank, calls in enumerate(broken["two.calls"]):
    print(f"rank {rank}, {len(broken['two.trained'][rank])} steps, the last calls:")
    print("\n".join(f"    {call}" for call in calls[-7:]))

# %% [markdown]
# ## What DistributedSampler does
#
# It needs no process group, so it can be asked here. It shuffles by its seed and the epoch, cuts shares, and repeats
# recordings to make them equal. Without `set_epoch` the epoch is always 0. Seeded by rank, the shares overlap.


# %%
def shares(epochs: list[int], seeds: list[int]) -> list[list[list[int]]]:
    """[epoch][rank] -> recordings, of 41 for two ranks."""
    samplers = [DistributedSampler(range(41), 2, rank, seed=seed) for rank, seed in enumerate(seeds)]
    found = []
    for epoch in epochs:
        for sampler in samplers:
            sampler.set_epoch(epoch)
        found.append([list(sampler) for sampler in samplers])
    return found


for told, epochs, seeds in (
    ("set_epoch", [0, 1], [0, 0]),
    ("never told the epoch", [0, 0], [0, 0]),
    ("a seed for each rank", [0, 1], [0, 1]),
):
    first, second = shares(epochs, seeds)
    drawn = list(chain(*first))
    again, alike = len(drawn) - len(set(drawn)), np.mean(np.array(drawn) == list(chain(*second)))
    print(f"{told:22} {len(set(drawn))} of 41 drawn, {again} again; {alike:4.0%} as in the epoch before")

# %% [markdown]
# ## Faults without a hang
#
# `statistics_of_rank_0` leaves running statistics to DDP, which hands rank 0's round. `join_every_epoch` lets a rank
# that has run out answer for the others' messages. Both run to the end. Spread is the largest difference between two
# ranks; an error is the distance from one process in float64, as the checks found it.

# %%
state = lab.measurement.Bearings().state_dict()
names = [name for name in sorted(state) if state[name].is_floating_point()]
of_statistics = np.concatenate([np.full(state[name].numel(), "running" in name) for name in names])
for name in ("fixed", *others[1:]):
    ranks = seen[name]["two.state"].astype(np.float64)
    spread = np.abs(ranks - ranks[0]).max(0)
    weights, statistics = spread[~of_statistics].max(), spread[of_statistics].max()
    print(f"{name:22} spread of weights {weights:.1g}, of running statistics {statistics:.1g}")
    for check in verdicts[name].checks:
        failing = [figure for figure in check.figures if not figure.holds]
        print(
            "".join(f"    {figure.what}: {figure.value:.2g}, wanted {figure.bound:g}\n" for figure in failing), end=""
        )
