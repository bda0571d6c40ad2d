# %% [markdown]
# # lab12, walked through: the model is not the same after it was validated
#
# Two runs from one seed, on one dataset. One was validated after every epoch, the other never. They end as different
# models. And neither has the backbone that was said to be frozen.
#
# This notebook judges the broken file and the fixed one, asks which tensors moved, and then shows why the fix that
# everybody writes is not one. **It gives the cause away.** Every number was computed when this page was built.

# %%
import torch
from IPython.display import HTML, Markdown
from torch.utils.data import TensorDataset

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.buffers import watch
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab12"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=20) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# One line per check: the figure on which the broken file failed.

# %%
Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed))))

# %% [markdown]
# ## Which tensors move
#
# `watch` compares a module with itself. First round one validation, then round one epoch of training. Validation asks
# for no gradients, and no parameter of the backbone is trained. Both times look for what should not be there.

# %%
given = lab.measurement.inputs(seed=20)
training = given.training["even"]
files = {name: subject.load(p.read_bytes(), str(p)) for name, p in (("broken", lab.starter), ("fixed", lab.solution))}

for name, file in files.items():
    torch.manual_seed(0)
    model, optimizer = file.build(torch.device("cpu"))
    model.load_state_dict(given.published)
    model.train()
    with watch(model) as validation:
        file.evaluate(model, training, 32)
    with watch(model.backbone) as epoch:
        file.train_epoch(model, optimizer, training, 32)
    print(f"--- {name}: one validation\n{validation}\n--- {name}: the backbone in one epoch of training\n{epoch}\n")

# %% [markdown]
# The fixed file turned the backbone's flags, and nothing moved.
#
# ## One photo, in three companies
#
# What does the model say about the same photo, in three batches? In training mode that depends on the others, and on
# dropout.

# %%
photos, kinds = training.tensors
batches = {"among the first two": slice(0, 2), "among the first 32": slice(0, 32), "among all": slice(0, len(kinds))}
for name, file in files.items():
    model, _ = file.build(torch.device("cpu"))
    model.load_state_dict(given.published)
    model.train()
    for company, rows in batches.items():
        torch.manual_seed(0)
        logits = file.evaluate(model, TensorDataset(photos[rows], kinds[rows]), len(kinds[rows]))[1][0]
        print(f"{name:6}  {company:20} {'  '.join(f'{value:6.2f}' for value in logits.tolist())}")

# %% [markdown]
# ## Why `eval()` before and `train()` after is not enough
#
# Somebody froze the neck for the last epochs. One validation, written as everybody writes it, and it trains again. If a
# photo cannot be read, the second line is never reached, and nothing trains any more.

# %%
model, _ = files["fixed"].build(torch.device("cpu"))
model.train()
model.backbone.eval(), model.neck.eval()
with watch(model) as seen:
    model.eval()
    model.train()
print(seen)

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
