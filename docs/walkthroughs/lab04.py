# %% [markdown]
# # lab04, walked through: memory grows during validation
#
# A model reads the event logs of lifts. Training fits the card. Validation, where nothing is trained, does not: it dies
# in batch 214.
#
# This notebook judges the broken file and the fixed one, and then asks every name who holds what. **It gives the cause
# away.** Every number was computed when this page was built.

# %%
import sys
from functools import partial

import torch
from IPython.display import HTML, Markdown, display
from torch import nn

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.lineage import Growth, held
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab04"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=1) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    points = f"{earned} of {possible} points"
    print(f"{name:6}  {verdict.state:6}  {points}  torch {verdict.versions['torch']}, {verdict.device}")

# %% [markdown]
# ## The evidence
#
# Both files evaluated the same batches and trained on the same ones. One line per check: the figure on which the broken
# file failed. Then the bytes alive, batch by batch.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## Who holds it
#
# Before each batch, look at the names of the function that asked for it, each by itself. In validation the sum of the
# losses holds everything. But the state holds most of it too: cut one chain, and the other stays.
#
# In training the losses, which everybody suspects, hold nodes and four bytes each. The average and the certainty hold
# what the card runs out of.

# %%


def looking(batches, growth):
    for batch in batches:
        names = sys._getframe(1).f_locals
        growth.look({key: names[key] for key in ("loss", "state", "losses", "smoothed", "certainties") if key in names})
        yield batch


def ask(name: str, run, model, batches) -> None:
    growth = Growth(beside=(model, batches))
    run(looking(batches, growth))
    print(f"{name}: {growth.report()}")


device = torch.device("cpu")
for name, path in ("broken", lab.starter), ("fixed", lab.solution):
    file = subject.load(path.read_bytes(), str(path))
    torch.manual_seed(0)
    model, batches = file.build(device), list(file.logs(12, device, seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ask(f"{name}, evaluate", partial(file.evaluate, model), model, batches)
    ask(f"{name}, train_epoch", partial(file.train_epoch, model, optimizer), model, batches)

# %% [markdown]
# ## What backward lets go of
#
# One loss, kept four ways. Without a backward pass all is held. After one, the nodes are, and nothing that was saved.
# Retained, all again. Detached, four bytes.

# %%
model, x = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)), torch.ones(64, 256)
for how in "no backward", "backward()", "backward(retain_graph=True)", "detached":
    loss = model(x).square().mean()
    if how.startswith("backward"):
        loss.backward(retain_graph="retain" in how)
    print(f"{how:28}{held(loss.detach() if how == 'detached' else loss, beside=(model, x))}")

# %% [markdown]
# ## A parameter in a function that is called under no_grad
#
# "`no_grad` does not reach into a function that is called, so a parameter in there builds a graph which grows." A
# thousand calls, every result kept:

# %%
scale = nn.Parameter(torch.ones(1))


def post_process(prediction):
    return prediction * scale


with torch.no_grad():
    kept = [post_process(torch.randn(4)) for _ in range(1000)]
print(held(kept))
