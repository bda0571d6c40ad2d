# %% [markdown]
# # lab34, walked through: a CUDA error at an innocent line
#
# Training stops with "device-side assert triggered" at a line that prints the loss. Restarted, it stops at another one.
# The survey of the masks has no complaints.
#
# This notebook judges the broken file and the fixed one, shows which line is blamed and why, and what a label becomes
# on its way to the card. **It gives the cause away.** Every number was computed when this page was built, on a CPU.

# %%
import numpy as np
import torch
from IPython.display import HTML, Markdown, display
from torch.nn import functional as F

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.late import LateError, LateErrors
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab34"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=34) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# One line per check: the figure on which the broken file failed. Then what becomes of the seven deliveries that have a
# wrong label.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## Which line is blamed
#
# A step with the label 12, where there are 12 classes. The CPU raises where the index is used. A card puts each kernel
# into a queue and lets Python go on; `LateErrors` is a model of that.

# %%
photos, masks = torch.rand(2, 3, 8, 8), torch.randint(12, (2, 8, 8))
masks[1, 4, 4] = 12


def step(reached: list[str]) -> None:
    model = torch.nn.Conv2d(3, 12, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = F.cross_entropy(model(photos), masks)
    reached.append("loss")
    loss.backward()
    reached.append("backward")
    optimizer.step()
    reached.append("step")
    loss.item()


for device in "the CPU", "a card, modelled":
    reached = []
    try:
        if device == "the CPU":
            step(reached)
        else:
            with LateErrors():
                step(reached)
    except (IndexError, LateError) as error:
        print(f"{device}: got past {', '.join(reached) or 'nothing'}; then {type(error).__name__}: {error}")

# %% [markdown]
# ## What a label becomes as one byte
#
# With 12 classes, and 255 for pixels to be ignored. Three of the five labels that are wrong stop nothing.

# %%
allowed = {*range(12), 255}
for label in (3, 255, 12, -1, -100, 259, 65535):
    byte = int(np.array(label).astype(np.uint8))
    becomes = "ignored" if byte == 255 else f"class {byte}" if byte < 12 else f"{byte}, out of range"
    print(f"{label:6} in the file: {'may be there' if label in allowed else 'is wrong':12}  in the loss: {becomes}")

# %% [markdown]
# ## What the loader says
#
# The delivery with two spoiled tiles, through both files: the survey, and the first epoch.

# %%
given = lab.measurement.inputs(seed=34)
name = "several"
wanted = {given.names[name][i]: labels for i, labels in given.deliveries[name].spoiled.items()}
print(f"wrong are {wanted}")
for side, path in ("broken", lab.starter), ("fixed", lab.solution):
    file = subject.load(path.read_bytes(), str(path))
    bench = lab.measurement.Bench(file.survey, file.build_loader, file.train_step, given, torch.device("cpu"))
    delivery = given.deliveries[name]
    print(f"{side}: survey {file.survey(bench.tiles(name, [0]), delivery.classes, delivery.ignore)}")
    try:
        print(f"  {sum(1 for _ in bench.loader(name, [0]))} batches, no error")
    except ValueError as error:
        print(f"  ValueError: {error}")
