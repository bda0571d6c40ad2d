# %% [markdown]
# # lab22, walked through: four cards, and no more room on any of them
#
# A model does not fit, two more cards were bought, and it still does not fit.
#
# This notebook judges the broken file and the fixed one, looks at who keeps what, takes the most silent trap apart, and
# asks what one rank of a thousand would keep. **It gives the cause away.** Every number was computed when this page was
# built.

# %%
import torch
from IPython.display import HTML, Markdown, display
from torch import nn
from torch.distributed.fsdp import fully_shard

from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.shards import simulated
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab22"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=20) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    told = f"{name:6}  {verdict.state:6}  {earned} of {possible} points"
    print(f"{told}  torch {verdict.versions['torch']}, {verdict.device}")

# %% [markdown]
# ## The evidence
#
# Two ranks trained and saved; four, and one, loaded that and went on. Every storage of every rank was counted. One line
# per check: the figure on which the broken file failed. P is the size of the parameters.

# %%
Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed))))

# %% [markdown]
# ## Who keeps what
#
# By kind, between two steps, on the fullest rank. Data parallel training divides the batch and nothing else.

# %%
seen = {name: decode(verdict.frame) for name, verdict in (("broken", broken), ("fixed", fixed))}
lines = ["| kept, in P | broken, 2 ranks | broken, 4 | fixed, 2 | fixed, 4 |", "|---|--:|--:|--:|--:|"]
for kind in "parameters", "gradients", "state", "held", "peak":
    cells = [f"{evidence[f'{ranks}.most.{kind}']:.2f}" for evidence in seen.values() for ranks in ("two", "four")]
    lines.append(f"| {'in all' if kind == 'held' else kind} | {' | '.join(cells)} |")
Markdown("\n".join(lines))

# %% [markdown]
# ## An optimizer that steps what nobody reads
#
# The most silent of the traps, on one simulated rank of two: no other is there, and none is needed to see it. The
# optimizer was built before the sharding, as in any script that is converted. The gradient is right, the step raises
# nothing.

# %%
with simulated(2):
    for order in "optimizer first", "sharding first":
        model = nn.Linear(4, 4, bias=False)
        nn.init.ones_(model.weight)
        if order == "optimizer first":
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            fully_shard(model)
        else:
            fully_shard(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        before = model.weight.to_local().clone()
        with torch.no_grad():
            model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        same = optimizer.param_groups[0]["params"][0] is model.weight
        moved = (model.weight.to_local() - before).abs().max().item()
        print(f"{order:15}: the optimizer has the model's parameter: {same!s:5}  a weight moved by {moved}")

# %% [markdown]
# ## One rank of a thousand
#
# **Simulated**: one rank, the others are not there. Its bytes are real; it is a wider model of the same kind.

# %%
display(HTML(figures.draw(lab, seen["broken"], seen["fixed"])))
for name, evidence in seen.items():
    print(name, *(f"{evidence[f'simulated.{many}']:.3f} P of {many}" for many in (8, 64, 1024)), sep="  ")
