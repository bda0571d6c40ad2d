# %% [markdown]
# # lab07, walked through: memory grows after inference, and the service learns nothing
#
# A service looks for defects on bottles, under `no_grad`. Memory grows all the same. Operators correct it, and it does
# not learn. And tuning while the line runs dies.
#
# This notebook judges the broken file and the fixed one, and then looks at four places where a mode is not what it
# seems. **It gives the cause away.** Every number was computed when this page was built.

# %%
from concurrent.futures import ThreadPoolExecutor

import torch
from IPython.display import HTML, Markdown, display
from torch import nn

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.lineage import held
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab07"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=1) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    points = f"{earned} of {possible} points"
    print(f"{name:6}  {verdict.state:6}  {points}  torch {verdict.versions['torch']}, {verdict.device}")

# %% [markdown]
# ## The evidence
#
# Both files served the same images. One line per check: the figure on which the broken file failed. Then the memory
# alive while results of one camera are kept.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## Inside the block, after it, in another thread
#
# One function that multiplies by a parameter, called three times. "`no_grad` does not reach into a function that is
# called": it does. What it does not reach is what comes after the block, and what another thread does.

# %%
scale, raw = nn.Parameter(torch.ones(4)), torch.randn(1000, 4)


def post_process(offsets):
    return (offsets * scale).exp()[:10].clone()


with torch.no_grad(), ThreadPoolExecutor(1) as pool:
    results = {"inside": post_process(raw), "in a thread": pool.submit(post_process, raw).result()}
results["after the block"] = post_process(raw)
results["after the block, input detached"] = post_process(raw.detach())
for where, result in results.items():
    print(f"{where:32} {result.nbytes} bytes that hold {held(result, beside=scale)}")

# %% [markdown]
# ## A yield inside the block
#
# The generator of the broken file, by itself: while it is suspended, its caller's gradients are off. Two at once close
# in the wrong order, and gradients stay off. The fixed file's generator leaves its caller alone.

# %%
device = torch.device("cpu")
for name, path in ("broken", lab.starter), ("fixed", lab.solution):
    file = subject.load(path.read_bytes(), str(path))
    model, images = file.build(device), [torch.zeros(1, 3, 64, 64)] * 3
    for _ in file.stream(model, images, "front"):
        pass_through = torch.is_grad_enabled()
    after = torch.is_grad_enabled()
    for _ in zip(file.stream(model, images, "front"), file.stream(model, images, "back"), strict=False):
        pass
    print(f"{name:6}  gradients in the body: {pass_through}, after it: {after}, ", end="")
    print(f"after two at once: {torch.is_grad_enabled()}")
    torch.set_grad_enabled(True)

# %% [markdown]
# ## A parameter that was born in inference mode
#
# It says that it requires a gradient, and never gets one. The loss falls all the same, by what the scale learns.

# %%
for name, mode in ("inference_mode", torch.inference_mode), ("no_grad", torch.no_grad):
    torch.manual_seed(0)
    with mode():
        layer = nn.Linear(4, 4, bias=False)
    gain, x = nn.Parameter(torch.ones(1)), torch.randn(64, 4)
    before, optimizer = layer.weight.clone(), torch.optim.SGD([gain, layer.weight], lr=0.1)
    losses = []
    for _ in range(20):
        loss = (layer(x) * gain - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    moved = (layer.weight - before).norm().item()
    print(f"made under {name:14}  requires_grad {layer.weight.requires_grad}, gradient ", end="")
    print(f"{'None' if layer.weight.grad is None else 'there'}, moved by {moved:.3f}, ", end="")
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
