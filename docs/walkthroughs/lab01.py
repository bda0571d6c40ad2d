# %% [markdown]
# # lab01, walked through: it runs out of memory at the first step, and a smaller batch does not help
#
# A job reserves 4.6 times the bytes of its parameters. Forward fits, backward fits, `optimizer.step()` dies. Half the
# batch dies at the same line.
#
# This notebook judges the broken file and the fixed one, counts one step byte by byte, and then counts real models
# without allocating them. **It gives the cause away.** Every number was computed when this page was built.

# %%
import torch
import torchvision
from IPython.display import HTML, Markdown, display
from torch.nn.functional import cross_entropy

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.memory import MIB, Card
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab01"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=1) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    points = f"{earned} of {possible} points"
    print(f"{name:6}  {verdict.state:6}  {points}  torch {verdict.versions['torch']}, {verdict.device}")

# %% [markdown]
# ## The evidence
#
# Both files trained the same models on the same batches, on a card whose bytes are counted. P stands for the bytes of
# all parameters. One line per check: the figure on which the broken file failed. Then the bytes alive during two
# updates without a budget, with the reservation as a line.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## One step, counted
#
# The same two functions, on a card without a budget: who holds the peak, and what stays after the step? Then with half
# the batch. The batch has no part in it. The fifth P is the square root of the second average, of all parameters at
# once, and it is gone when the step returns.
#
# With the reservation as a budget, the card refuses exactly that.

# %%
device = torch.device("cpu")
for name, path in ("broken", lab.starter), ("fixed", lab.solution):
    file = subject.load(path.read_bytes(), str(path))
    for items in 32, 16:
        with Card(device) as card:
            model, state = file.build(device)
            size = card.in_use
            file.train_step(model, state, (torch.arange(items), torch.arange(items)))
            stays = card.in_use / size
        held = ", ".join(f"{kind} {bytes / size:.2f}" for kind, bytes in card.peak.held.items() if bytes > 0.01 * size)
        print(f"{name:6}  {items} items: peak {card.peak.bytes / size:.2f} P ({held}), {stays:.2f} P stay")

file = subject.load(lab.starter.read_bytes(), str(lab.starter))
with Card(device, budget=int(4.6 * size)):
    try:
        file.train_step(*file.build(device), (torch.arange(32), torch.arange(32)))
    except torch.OutOfMemoryError as error:
        print(error)

# %% [markdown]
# ## Real models
#
# On the device `meta` tensors have shapes and no memory, so a card can count any batch: two steps with AdamW, once with
# what CUDA chooses by default, once with `foreach=False`. Where the two differ, the optimizer decides the peak. Where
# they do not, backward does: there a smaller batch helps, and the optimizer does not.

# %%


def count(build, images: int, foreach: bool | None):
    with Card("meta") as card, torch.device("meta"):
        model = build()
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        for _ in range(2):
            cross_entropy(model(torch.empty(images, 3, 224, 224)), torch.empty(images, dtype=torch.long)).backward()
            optimizer.step()
            optimizer.zero_grad()
            card.end_step()
    return size, f"{card.peak.bytes / MIB:.0f} MiB, {card.peak.bytes / size:.2f} P, in {card.peak.phase}"


rows = ["| model | images | P | default on CUDA | foreach=False |", "|---|---:|---:|---:|---:|"]
models = torchvision.models
for build, images in (models.vit_b_16, 2), (models.resnet50, 1), (models.resnet50, 8), (models.resnet50, 64):
    (size, default), (_, loop) = (count(build, images, foreach) for foreach in (None, False))
    rows.append(f"| {build.__name__} | {images} | {size / MIB:.0f} MiB | {default} | {loop} |")
Markdown("\n".join(rows))
