# %% [markdown]
# # lab08, walked through: the loss is nan, but only on some batches
#
# A decoder trains on commands. Most steps report a loss. Some report nan. Last month's data never did that.
#
# This notebook judges the broken file and the fixed one, looks at the numbers, and then makes the nan by hand.
# **It gives the cause away.** Every number below was computed when this page was built.

# %%
import torch
from IPython.display import HTML, Markdown

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab08"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=20) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# Both files saw the same batches. A check compares what they answered with a float64 reference.
# One line per check: the figure on which the broken file failed.

# %%
Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed))))

# %% [markdown]
# ## Where the nan is made
#
# Take one batch, and the broken file's own lines, one at a time. After the end of a short command no token is allowed.
# Such a row is -inf all over. A softmax subtracts the row's maximum first, and -inf minus -inf is nan.
#
# The position does not count, so its loss is multiplied by zero. Watch what zero times nan does, forward and backward.

# %%
batch = lab.measurement.inputs(seed=20)["ragged"]
nothing_allowed = ~batch.mask.any(dim=-1)
logits = batch.logits.clone().requires_grad_()

probabilities = torch.softmax(logits.masked_fill(~batch.mask, float("-inf")), dim=-1)
print("positions where no token is allowed:", int(nothing_allowed.sum()))
print("positions with nan probabilities:   ", int(probabilities.isnan().any(dim=-1).sum()))

for name, path in ("broken", lab.starter), ("fixed", lab.solution):
    loss = subject.load(path.read_bytes(), str(path)).loss_fn(logits, batch.targets, batch.mask)
    (gradient,) = torch.autograd.grad(loss, logits)
    spoiled = int(gradient.isnan().any(dim=-1).sum())
    print(f"{name:6}  loss {loss.item():.4f}, nan gradients at {spoiled} of {batch.targets.numel()} positions")

# %% [markdown]
# Multiplying by zero comes too late. What does not count must be dropped *before* it meets the sum.
#
# ## What training saw
#
# One batch in five held short commands. The loop skipped every step whose gradient was not finite.
# So the log looked almost well, and those batches taught nothing.

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
