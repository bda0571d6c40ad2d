# %% [markdown]
# # lab11, walked through: the loss does not fall
#
# Jobs whose loss does not fall come into a clinic. It looks at the curve, says `learning_rate`, and makes the steps ten
# times as long.
#
# This notebook judges the broken file and the fixed one, and then asks the patients themselves. **It gives the causes
# away.** Every number was computed when this page was built.

# %%
import warnings

import torch
from IPython.display import HTML, Markdown, display
from torch.nn import functional as F

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.ownership import ownership
from breakfix.render import figures, tables
from breakfix.zygote import Engine

warnings.filterwarnings("ignore", "Using a target size", UserWarning)  # as it is ignored on most consoles
lab = Catalog.read()["lab11"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=4) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# One line per check: the figure on which the broken file failed. Then how well each kind of patient predicts unseen
# rows after the repair; a cross is a loss that is not a number.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## The curve does not say
#
# Each patient trained without any repair: its loss in the first pass and in the last. Some sick ones fall, and some
# sound ones do not.

# %%
measurement, cpu = lab.measurement, torch.device("cpu")
ward = {patient.name: patient for patient in measurement.inputs(seed=4)}
for name in measurement.PATIENTS:
    losses = measurement.train(ward[name].trainer(cpu), measurement.EPOCHS)
    print(f"{ward[name].cause:20} {name:28} {sum(losses[:8]) / 8:9.3g} -> {sum(losses[-8:]) / 8:9.3g}")

# %% [markdown]
# ## Who holds what
#
# The graph behind the loss knows which tensors it was computed from. The module knows which it registers, and the
# optimizer which it steps.

# %%
for name in ("layers in a list", "new head", "sound, head alone"):
    trainer = ward[name].trainer(cpu)
    loss = trainer.loss_fn(trainer.model(trainer.inputs), trainer.targets)
    print(f"--- {name}\n{ownership(loss, trainer.model, trainer.optimizer)}\n")

# %% [markdown]
# ## What the loss is content with
#
# Made-up outputs tell more about a loss than a model does. Perfect ones should cost nothing. And it should matter which
# output meets which target.

# %%
clinic = subject.load(lab.solution.read_bytes(), str(lab.solution))
for name in ("softmax as a layer", "softmax in the loss", "sound, probabilities", "sound, log-probabilities"):
    trainer = ward[name].trainer(cpu)
    outputs = trainer.model(trainer.inputs).detach()
    perfect = F.one_hot(trainer.targets, outputs.shape[1]) * (1.0 if clinic.are_probabilities(outputs) else 100.0)
    print(f"{name:28} loss of perfect outputs {trainer.loss_fn(perfect, trainer.targets).item():.3f}")
for name in ("column against row", "sound, squeezed in the loss"):
    trainer = ward[name].trainer(cpu)
    outputs = torch.rand_like(trainer.model(trainer.inputs).detach())
    two = [trainer.loss_fn(outputs, targets).item() for targets in (trainer.targets, trainer.targets.flip(0))]
    print(f"{name:28} loss {two[0]:.4f}, with the targets turned round {two[1]:.4f}")

# %% [markdown]
# ## Gradients after one pass
#
# Per weight matrix, from the input to the output: the norm of the gradient over all rows. Exactly zero, fading away, or
# the same for every unit are three different things. A head of zeros looked like the first before the pass.

# %%
for name in ("dead by bias", "twelve sigmoids", "all constant", "sound, head of zeros", "sound"):
    found = clinic.after_an_epoch(ward[name].trainer(cpu)).values()
    alike = sum(len(p) > 1 and clinic.alike(p) and clinic.alike(g) for p, g in found)
    norms = "  ".join(f"{float(g.norm()):.0e}" for _, g in found)
    print(f"{name:20} layers whose units are alike: {alike}   {norms}")
