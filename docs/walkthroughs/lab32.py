# %% [markdown]
# # lab32, walked through: the answers changed with the upgrade
#
# A layer for compatibility, a comparison of versions, a regression test: three helpers for an upgrade, and each of them
# is wrong. This notebook judges the broken file and the fixed one and takes the three apart. **It gives the cause
# away.** Every number was computed when this page was built.

# %%
import torch
from IPython.display import HTML, Markdown
from torch.nn import functional as F

from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab32"]
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
# ## Three operations with one name
#
# All on the torch that is installed. Only a smaller image tells them apart.

# %%
image = lab.measurement.inputs(seed=20).images["half"]
for size in (24, 32), (114, 150):
    plain = F.interpolate(image, size=size, mode="bilinear", align_corners=False)
    for other in ({"mode": "bilinear", "antialias": True}, {"mode": "bicubic"}):
        made = F.interpolate(image, size=size, align_corners=False, **other)
        print(
            f"{tuple(image.shape[-2:])} to {size}: {other} is {(made - plain).norm() / plain.norm():.6f} from bilinear"
        )

# %% [markdown]
# ## How far two right answers are apart
#
# One model, in units of 1, 0.0001 and 10000, asked in six ways; and two models that are not the same. Shares of the
# answers' root mean square. A bound in that unit fits all of them, an absolute one does not.

# %%
given, m = lab.measurement.inputs(seed=20), lab.measurement
for name, scale in m.SCALES.items():
    model = m.tagger(given, scale, torch.device("cpu"))
    with torch.no_grad():
        then = model(given.photos)
        far = [(same(given.photos) - then).abs().max() / scale for same in m.unchanged(model).values()]
        one = m.changed(m.tagger(given, scale, torch.device("cpu")), given, scale)["one answer by a thousandth"]
        off = ((one(given.photos) - then).abs().max() / scale).item()
    print(f"{name:20} rounding below 1e-5: {max(far) < 1e-5}; a changed answer: {off:.4f}")

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
