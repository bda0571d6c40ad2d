# %% [markdown]
# # lab18, walked through: it works on the CPU and fails on the GPU
#
# A forecaster has trained on the CPU for months. Sent to a card, it stops at once; where that is repaired, it stops at
# the next place. Some repairs make it run and leave it slow, or unable to read its old files.
#
# This notebook judges the broken file and the fixed one, and then looks for all places at once. **It gives the cause
# away.** Every number was computed when this page was built, without a GPU.

# %%
from contextlib import nullcontext

import torch
from IPython.display import HTML, Markdown, display

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.placement import FakeCard, left_behind
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab18"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=18) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# One line per check: the figure on which the broken file failed. Then the numbers that the model computes with, and who
# knows of them.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## Everything that stays behind
#
# `left_behind` moves a fake copy of the model, and looks where each tensor is that the model leads to. The fixed model
# leaves nothing. What is no attribute of the model is not in this list: a tensor that `forward` makes, or a constant of
# the file.

# %%
given = lab.measurement.inputs(seed=18)
files = {name: subject.load(p.read_bytes(), str(p)) for name, p in (("broken", lab.starter), ("fixed", lab.solution))}
for name, file in files.items():
    strays = left_behind(file.build(given.statistics))
    print(f"{name}: {len(strays)} tensors, {sum(s.nbytes for s in strays)} bytes")
    for stray in strays[:5]:
        print(f"  {stray}")

# %% [markdown]
# ## Why not on meta
#
# `meta` needs no card either, and lets some things pass that a card refuses. The fake card raises what a card raises.

# %%
questions = {
    "a product with a matrix on the CPU": lambda there, here, rows: there @ here,
    "a sum with a matrix on the CPU": lambda there, here, rows: there + here,
    "the CPU's rows by an index there": lambda there, here, rows: here[rows.to(there.device)],
    "its rows by an index on the CPU": lambda there, here, rows: there[rows],
    "a sum with one number on the CPU": lambda there, here, rows: there + torch.tensor(1.0),
}
for name, place, device in ("meta", nullcontext(), "meta"), ("fake card", FakeCard(), "cuda"):
    with place:
        for what, ask in questions.items():
            try:
                found = ask(torch.ones(4, 4, device=device), torch.ones(4, 4), torch.zeros(2, dtype=torch.int64))
                answer = f"fine, on {found.device}"
            except RuntimeError as error:
                answer = type(error).__name__
            print(f"{name:9}  {what:34}  {answer}")

# %% [markdown]
# ## Running is not enough
#
# The repair that is advised most often is `.to(x.device)` wherever an error appears. It runs. The report says what the
# second of two training steps then sends from the CPU to the card, and from which line.

# %%
moved = lab.tests_path / "wrong" / "moved_in_forward.py"
for name, file in {"fixed": files["fixed"], "moved_in_forward": subject.load(moved.read_bytes(), str(moved))}.items():
    with FakeCard() as card:
        model = card.copy(file.build(given.statistics)).to(card.device)
        readings, truth = (t.to(card.device) for t in card.copy(given.batches["two days"]))
        for _ in range(2):
            card.events.clear()
            file.loss_fn(model(readings), truth).backward()
        print(f"{name}: {card.report()}")
