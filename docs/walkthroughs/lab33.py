# %% [markdown]
# # lab33, walked through: it works here, and not there
#
# One plant is held up although everything fits, and two pass although they cannot work. And a checkpoint made a folder
# while it was loaded.
#
# This notebook judges the broken file and the fixed one, looks into a checkpoint without loading it, and compares
# versions and cards. **It gives the cause away.** Every number was computed when this page was built.

# %%
import tempfile
from pathlib import Path

import numpy as np
import torch
from IPython.display import HTML, Markdown
from packaging.version import Version

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab33"]
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
# ## What a checkpoint would call
#
# Read without loading. The first is honest, with a best score that is a number of NumPy. The second makes a folder. The
# third is a whole model.

# %%
folder = Path(tempfile.mkdtemp())
notes = {
    "honest": {"weight": torch.ones(2), "best": np.float64(0.93)},
    "partner's": {"weight": torch.ones(2), "note": lab.measurement.Call(exec, "pass")},
    "whole model": torch.nn.Sequential(torch.nn.Linear(2, 2)),
}
for name, state in notes.items():
    torch.save(state, folder / "checkpoint.pt")
    asked = torch.serialization.get_unsafe_globals_in_checkpoint(folder / "checkpoint.pt")
    print(f"{name:12}{', '.join(sorted(asked))}")

# %% [markdown]
# Two names are missing for the honest one, and so it is refused. The broken file answers that with
# `weights_only=False`; the fixed one with those names and NumPy's dtypes.
#
# ## Versions, and cards

# %%
print("text:    2.14.1 < 2.9 is", "2.14.1" < "2.9", "  580.9.2 >= 580.65.06 is", "580.9.2" >= "580.65.06")
print("version: 2.14.1 < 2.9 is", Version("2.14.1") < Version("2.9"), end=" ")
print("  580.9.2 >= 580.65.06 is", Version("580.9.2") >= Version("580.65.06"))

solution = subject.load(lab.solution.read_bytes(), str(lab.solution))
wheel = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]  # of torch 2.14.1+cu130
for card, capability in {"V100": (7, 0), "T4": (7, 5), "L40S": (8, 9), "RTX 5090": (12, 0), "GB10": (12, 1)}.items():
    kernels = [arch for arch in wheel if solution.runs_on(capability, arch)]
    print(f"{card:10}{capability[0]}.{capability[1]:<4}{', '.join(kernels) or 'nothing'}")

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
