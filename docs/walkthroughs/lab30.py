# %% [markdown]
# # lab30, walked through: a run that was stopped goes on as another run
#
# One seed, two runs. One was left alone, the other was stopped once and went on from its file. They end as different
# models, and no loss curve says so.
#
# This notebook judges the broken file and the fixed one, looks at what is not in the file, and then at the disk while
# a checkpoint is written. **It gives the cause away.** Every number was computed when this page was built.

# %%
import tempfile
from pathlib import Path

import torch
from IPython.display import HTML, Markdown

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab30"]
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
# ## What the next batch needs
#
# Stop after batch 17, resume, and compare the very next batch with that of the run that was left alone: the rate, the
# parcels, and the loss. All three are different before a single weight has gone another way.

# %%
given, cpu = lab.measurement.inputs(seed=20), torch.device("cpu")
files = {name: subject.load(p.read_bytes(), str(p)) for name, p in (("broken", lab.starter), ("fixed", lab.solution))}


def next_batch(file, run):
    seen = lab.measurement.Seen(given.training)
    with seen.of(run):
        loss = file.train(run, 1)[0]
    return f"rate {seen.rates[0]:.5f}, first parcels {seen.rows[0][:4].tolist()}, loss {loss:.4f}"


folder = Path(tempfile.mkdtemp())
for name, file in files.items():
    run = file.start(given.training, given.validation, 1, cpu)
    file.train(run, 17)
    file.save(run, folder / f"{name}.pt")
    alone = next_batch(file, run)
    torch.manual_seed(2)
    resumed = file.resume(folder / f"{name}.pt", given.training, given.validation, cpu)
    print(f"{name:6}  left alone  {alone}\n{'':6}  resumed     {next_batch(file, resumed)}\n")

# %% [markdown]
# ## The disk, while a checkpoint is saved over the last one
#
# Python tells a profiler of every call. Whenever the folder has changed since the last call, its content is kept: a
# process that is killed there leaves just that.

# %%
for name, file in files.items():
    place = folder / name
    place.mkdir()
    run = file.start(given.training, given.validation, 1, cpu)
    file.save(run, place / "run.pt")
    with lab.measurement._watched(place) as moments:
        file.save(run, place / "run.pt")
    sizes = [len(disk.get("run.pt", b"")) for disk in moments]
    whole = max(sizes)
    print(f"{name:6}  {len(moments)} states; run.pt is whole in {sum(size == whole for size in sizes)}")

# %% [markdown]
# The fixed file writes under another name all the while, so that `run.pt` is always a whole one.

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
