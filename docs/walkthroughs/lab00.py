# %% [markdown]
# # lab00, walked through: the loss falls, the weights are wrong
#
# A linear model is fitted one batch at a time. The first ten losses look better than they should. Then they swing.
#
# This notebook judges the broken file and the fixed one, and looks at the gradient that each step used.
# **It gives the cause away.** Every number below was computed when this page was built.

# %%
import torch
from IPython.display import HTML, Markdown
from torch import nn

from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.parity import relative_error
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab00"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=20) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# One batch is right, two are not. One line per check: the figure on which the broken file failed.

# %%
Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed))))

# %% [markdown]
# ## What a step really used
#
# `backward()` adds to `.grad`. Compare what lies there with the gradient of the batch alone.

# %%
given = lab.measurement.inputs(seed=20)
model = nn.Linear(lab.measurement.READINGS, 1)
for number, (readings, load) in enumerate(given.batches[:4], 1):
    loss = nn.functional.mse_loss(model(readings), load)
    (alone,) = torch.autograd.grad(loss, [model.weight], retain_graph=True)
    loss.backward()  # and nobody empties .grad
    print(f"batch {number}: .grad is off by {relative_error(model.weight.grad, alone):.2f} of the batch's own gradient")

# %% [markdown]
# ## Eighty batches
#
# A sum of old gradients pushes like momentum that never decays. It overshoots, and comes back, and overshoots again.

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
