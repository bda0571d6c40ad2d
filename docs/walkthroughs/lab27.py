# %% [markdown]
# # lab27, walked through: a payment is judged by the company it keeps
#
# The int8 model is as accurate as the float one, and a quarter of its size. But one payment in the wrong currency, and
# everybody else's scores in its batch are nonsense.
#
# This notebook judges the broken file and the fixed one, looks at the grid on which an ordinary row is rounded, and
# asks what becomes of a nan. **It gives the cause away.** Every number was computed when this page was built.

# %%
import math
import warnings

import torch
from IPython.display import HTML, Markdown

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.parity import relative_error
from breakfix.render import figures, tables
from breakfix.zygote import Engine

warnings.simplefilter("ignore")  # torch.ao.quantization is deprecated, and says so at each call
lab = Catalog.read()["lab27"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=27) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed 27")

# %% [markdown]
# ## The evidence
#
# One line per check: the figure on which the broken file failed.

# %%
Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed))))

# %% [markdown]
# ## The grid
#
# An ordinary row of 48 features. How many different numbers are left of it, when the largest number of the whole batch
# sets the step, and when its own does?

# %%
given = lab.measurement.inputs(seed=27)
row = given.batch[1]
for factor in (1, 10, 100, 1000):
    batch = torch.cat([factor * given.batch[:1], given.batch[1:]])
    of_batch, of_row = batch.abs().max() / 127, row.abs().max() / 127
    left = [(row / step).round().unique().numel() for step in (of_batch, of_row)]
    print(f"one row {factor:4} times as large: {left[0]:2} numbers on the batch's grid, {left[1]} on its own")

# %% [markdown]
# ## What becomes of a number that is none
#
# One feature of payment 5 is nan, then inf. Which payments have no finite score: of the float model, and of both int8
# ones? And by how much do the others move?

# %%
files = {name: subject.load(p.read_bytes(), str(p)) for name, p in (("broken", lab.starter), ("fixed", lab.solution))}
model = files["fixed"].build_model()
model.load_state_dict(given.weights)
models = {"float": model.eval()} | {name: f.quantize(model, given.samples["clean"]) for name, f in files.items()}

others = [i for i in range(32) if i != 5]


@torch.no_grad()
def told(scorer, spoilt) -> str:
    try:
        scores, usual = scorer(spoilt), scorer(given.batch)
    except RuntimeError as error:
        return f"nobody is scored: {error}"
    gone = [i for i in range(32) if not scores[i].isfinite().all()]
    moved = relative_error(scores[others], usual[others])
    by = "less than 1e-6" if moved < 1e-6 else f"{moved:.1g}"
    return f"without a score: {gone or 'nobody'}; the others move by {by}"


for number in (math.nan, math.inf):
    spoilt = given.batch.clone()
    spoilt[5, 20] = number
    for name, scorer in models.items():
        print(f"{number}  {name:6}  {told(scorer, spoilt)}")

# %% [markdown]
# The broken file hides a nan, and an inf costs the whole batch its scores.

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
