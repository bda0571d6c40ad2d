# %% [markdown]
# # lab10, walked through: the loss falls, and the search gets worse
#
# A shop's look-alike search trains. The loss halves in sixty steps, as in the prototype. The share of products that are
# found falls meanwhile. One night a batch holds a photo that somebody uploaded twice, and every weight is nan.
#
# This notebook judges the broken file and the fixed one, finds the line after which the gradient is another one, and
# makes the nan by hand. **It gives the cause away.** Every number was computed when this page was built.

# %%
import copy

import torch
from IPython.display import HTML, Markdown

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.parity import relative_error
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab10"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=20) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# The optimizer is plain gradient descent, so a step shows which gradient it used. One line per check: the figure on
# which the broken file failed. Then the error of the encoder's step on five kinds of batch; a cross is a nan.

# %%
Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed))))

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))

# %% [markdown]
# ## At which line
#
# The broken file's own functions, in its own order. After each line the encoder's gradient is asked for again: one
# loss, one graph, and three answers.

# %%
file = subject.load(lab.starter.read_bytes(), str(lab.starter))
given = lab.measurement.inputs(seed=20)
model = file.build(torch.device("cpu"))
model.load_state_dict(given.state)
loss, shelf, places = file.losses(model, given.batches["ordinary"])


def gradient() -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.encoder.parameters(), retain_graph=True)])


right = gradient()
model.remember(places)
print(f"after remember:         the encoder's gradient is {relative_error(gradient(), right):.1%} off")
file.descend(model.shelf, shelf, lr=0.3)
print(f"after the shelf's step: {relative_error(gradient(), right):.1%} off")

# %% [markdown]
# ## Three ways to write to a tensor
#
# y = w², w is 2, and then w is multiplied by ten. Backward needs the w that forward saw, and the gradient is 4.
# Autograd counts writes. What `.data` writes it does not count.

# %%
for how in "no_grad", "detach", "data":
    w = torch.tensor(2.0, requires_grad=True)
    y = w**2
    with torch.no_grad():
        {"no_grad": w, "detach": w.detach(), "data": w.data}[how].mul_(10)
    try:
        y.backward()
        print(f"{how:8} gradient {w.grad.item():.0f}, writes counted: {w._version}")
    except RuntimeError:
        print(f"{how:8} refused, writes counted: {w._version}")

# %% [markdown]
# ## Where the nan is made
#
# `where` chooses the zero, and both arms get a gradient: zero for the one that was not chosen. The derivative of a
# square root at zero is infinite. Made safe before the root sees it, the same zero does no harm.

# %%
a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
b = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
for name, path in ("broken", lab.starter), ("fixed", lab.solution):
    rows = copy.deepcopy(a).requires_grad_()
    lengths = subject.load(path.read_bytes(), str(path)).distance(rows, b)
    (pull,) = torch.autograd.grad(lengths.sum(), rows)
    print(f"{name:6}  distances {lengths.tolist()}, gradient {pull.tolist()}")
