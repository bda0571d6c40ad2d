# %% [markdown]
# # lab02, walked through: checkpointing saves nothing
#
# A model is trained with its blocks under a checkpoint. The peak is what it was before, and when all but small adapters
# are frozen, the adapters do not learn.
#
# This notebook judges the broken file and the fixed one, looks at one step's bytes, and then changes one property of
# the checkpoint at a time. **It gives the cause away.** Every number was computed when this page was built.

# %%
import warnings

import torch
from IPython.display import HTML, Markdown, display
from torch import nn
from torch.utils.checkpoint import checkpoint

from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.parity import relative_error
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab02"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=2) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# Both files trained the same models on the same batches from the same seed. One line per check: the figure on which the
# broken file failed. Then the bytes alive during two updates from scratch, beside those of the plain model. The
# broken file is low in forward, and pays for it all at once when backward begins.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## One property at a time
#
# The reference model, its blocks put under checkpoints in five ways. Per way and regime: the peak as a share of
# the plain one, how many parameters got a gradient, how far that gradient is off, and how far the running
# statistics are after the first batch.

# %%
measurement, cpu = lab.measurement, torch.device("cpu")
drawn = measurement.inputs(seed=2)


class Region(nn.Module):
    """Runs a part of the model under a checkpoint."""

    def __init__(self, part: nn.Module, **how):
        super().__init__()
        self.part, self.how = part, how

    def forward(self, x):
        return checkpoint(self.part, x, **self.how) if self.training else self.part(x)


def per_block(model, **how):
    blocks = nn.Sequential(*(Region(block, **how) for block in model.blocks))
    object.__setattr__(model, "run", lambda readings: model.leave(blocks(model.enter(readings))))


def in_one(model, **how):
    region = Region(model.blocks, **how)
    object.__setattr__(model, "run", lambda readings: model.leave(region(model.enter(readings))))


def step(model, optimizer, batch):
    loss = nn.functional.cross_entropy(model.run(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


ways = {
    "plain": lambda model: object.__setattr__(model, "run", model.forward),
    "one region": lambda model: in_one(model, use_reentrant=False),
    "per block": lambda model: per_block(model, use_reentrant=False),
    "per block, reentrant": lambda model: per_block(model, use_reentrant=True),
    "per block, other masks": lambda model: per_block(model, use_reentrant=False, preserve_rng_state=False),
}
lines = ["| regime | way | peak | with a gradient | gradient off | statistics off |", "|---|---|---:|---:|---:|---:|"]
for regime, sizes in measurement.REGIMES.items():
    plain = None
    for way, put in ways.items():
        model = measurement.reference(sizes, 2, cpu)
        put(model)
        with warnings.catch_warnings(action="ignore"):  # "Gradients will be None": the count says so too
            found = measurement.train(model, step, regime, drawn, cpu)
        plain = plain or found
        share, got = found["peak"] / plain["peak"], f"{len(found['trained'])} of {len(plain['trained'])}"
        off = [relative_error(found[key][0], plain[key][0]) for key in ("gradients", "statistics")]
        lines.append(f"| {regime} | {way} | {share:.2f} | {got} | {off[0]:.1%} | {off[1]:.1%} |")
Markdown("\n".join(lines))

# %% [markdown]
# The gradient of whole blocks is exact; what is left is BatchNorm, which has counted each batch twice. With the norm
# outside the region, as in the fixed file, or with a second pass in which it does not count, nothing is off.
#
# ## What a linear layer has to give
#
# It saves its input, and so would its checkpoint: nothing is saved, and nothing is computed again. The products of one
# step, by PyTorch's own counter, with a checkpoint round each linear layer and without.

# %%
regime = measurement.REGIMES["scratch"]
forward, plain = measurement.plain_products(regime)
for name, put in ("each linear layer", measurement._wrap_each_linear), ("nothing", lambda model: None):
    _, products = measurement.plain_products(regime, put)
    print(f"{name:18} {products / 1e9:.3f} GFLOP, {(products - plain) / forward:.2f} of forward computed again")
