# %% [markdown]
# # lab16, walked through: the card waits, and so does the processor
#
# The loop waits for batches. Processors have time. More workers made it worse, and validation counts records twice.
#
# This notebook judges the broken file and the fixed one, counts what each does, and takes two of the causes apart by
# hand: what a worker copies by looking, and what it brings twice. **It gives the cause away.** Every number was
# computed when this page was built.

# %%
import gc

import numpy as np
from IPython.display import HTML, Markdown
from torch.utils.data import DataLoader, Dataset

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.loader import private_bytes, reads, settle
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab16"]
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
# ## What a worker copies by looking
#
# Two workers look at 8000 of 200 000 rows and change none. As a list of tuples, as the same list that the collector has
# been told to leave alone, and as one array. Measured is what they have to themselves at the last batch, less that at
# the first. Its last digits differ from run to run, so it is compared with 4 MiB.

# %%


class Rows(Dataset):
    """Numbers in rows: a list of tuples, or an array."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return sum(self.rows[index])


def written(rows):
    """MiB that two workers have written to in an epoch."""
    order = np.random.default_rng(0).choice(len(rows), 8000, replace=False).tolist()
    found = []
    for batch, _ in enumerate(DataLoader(Rows(rows), batch_size=80, sampler=order, num_workers=2)):
        if batch in (0, 99):
            settle()
            found.append(sum(private_bytes().values()))
    return (found[1] - found[0]) / 2**20


array = np.random.default_rng(1).integers(1000, 10**6, (200_000, 4))
tuples = list(map(tuple, array.tolist()))
for name, rows in {"array": array, "list of tuples": tuples, "and gc.freeze()": tuples}.items():
    if "freeze" in name:
        gc.freeze()
    print(f"{name:16} {'more' if written(rows) > 4 else 'less'} than 4 MiB")
gc.unfreeze()

# %% [markdown]
# ## What workers bring twice
#
# Three shards of four records each, and one validation. `again` counts the records that had come before.

# %%
shards = [[(np.zeros(1), 0, 4 * shard + i) for i in range(4)] for shard in range(3)]
for name, path in ("broken", lab.starter), ("fixed", lab.solution):
    build = subject.load(path.read_bytes(), str(path)).build_validation
    for workers in 0, 1, 2:
        loader = build(shards, workers)
        with reads(loader.dataset) as seen:
            came = sorted(i for _, _, ids in loader for i in ids.tolist())
        found = seen.take()
        print(f"{name:6}  {workers} workers: {len(came):2} records, {found.again:2} again")

# %% [markdown]
# ## Decodes, epoch by epoch

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
