# %% [markdown]
# # lab28, walked through: the smaller model is not smaller
#
# Nine of ten weights are pruned and the accuracy holds. The file is twice as large, the work is what it was, and on the
# device the model reads like a die.
#
# This notebook judges the broken file and the fixed one, looks into both files, and takes a neuron out by hand.
# **It gives the cause away.** Every number was computed when this page was built.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from IPython.display import HTML, Markdown
from torch.nn.utils import prune

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab28"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=28) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    points = f"{earned} of {possible} points"
    print(f"{name:6}  {verdict.state:6}  {points}  torch {verdict.versions['torch']}, {verdict.device}")

# %% [markdown]
# ## The evidence
#
# One line per check: the figure on which the broken file failed.

# %%
Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed))))

# %% [markdown]
# ## Two files
#
# Prune an untrained reader with each file, and ship it. What is in there, and what does it weigh?

# %%
files = {name: subject.load(p.read_bytes(), str(p)) for name, p in (("broken", lab.starter), ("fixed", lab.solution))}
with TemporaryDirectory() as folder:
    path = Path(folder, "reader.pt")
    for name, file in files.items():
        torch.manual_seed(0)
        file.ship(file.prune(file.build_model()), path)
        print(f"--- {name}")
        for key, value in torch.load(path).items():
            print(f"{key:24} {list(value.shape)!s:16} {value.numel() * value.itemsize:6} bytes")

# %% [markdown]
# The broken file holds each weight twice over: once whole, once as a mask. Its shapes are those of the dense network,
# and shapes are what a product works on.
#
# ## Where the zeros go
#
# `prune.remove` gives the weight its name back. It also takes away what held the zeros.

# %%
torch.manual_seed(0)
layer = torch.nn.Linear(64, 64)
prune.l1_unstructured(layer, "weight", amount=0.9)
for made_permanent in (False, True):
    if made_permanent:
        prune.remove(layer, "weight")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    layer(torch.randn(8, 64)).square().sum().backward()
    optimizer.step()
    layer(torch.randn(8, 64))  # the mask is applied before a forward
    held = "made permanent" if made_permanent else "masked"
    print(f"{held:15} after one step {(layer.weight == 0).float().mean():.2f} of the weights are 0")

# %% [markdown]
# ## One neuron, out
#
# Nothing reaches it, and still it says something. Without that the answers move.

# %%
first, second = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)
with torch.no_grad():
    first.weight[1], first.bias[1] = 0.0, 0.7
    x = torch.randn(1000, 4)
    whole = second(first(x).relu())
    keep = [0, 2]
    hidden = (x @ first.weight[keep].T + first.bias[keep]).relu()
    sliced = hidden @ second.weight[:, keep].T + second.bias
    said = second.weight[:, 1] * first.bias[1].relu()
print(f"row and column out: answers move by up to {(sliced - whole).abs().max():.3f}")
print("with what it said in the reader's bias, equal:", torch.allclose(sliced + said, whole, atol=1e-6))

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
