# %% [markdown]
# # lab17, walked through: every epoch looks like the last
#
# Random clips of random recordings, forty epochs long. All of them begin at forty different times.
#
# This notebook judges the broken file and the fixed one, looks at where the numbers come from, and then shows why the
# three fixes that people try first are half ones. **It gives the cause away.** Every number was computed when this page
# was built.

# %%
import numpy as np
from IPython.display import HTML, Markdown
from torch.utils.data import DataLoader, Dataset, get_worker_info

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.loader import reads
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab17"]
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
# ## From which states the clips are drawn
#
# `reads` looks at every generator that the dataset can reach, before and after each sample. Fewer states than draws:
# the numbers repeat. Of the fixed file it says nothing, because there no generator outlives a clip.

# %%
recordings = lab.measurement.inputs(seed=20).recordings
for name, path in ("broken", lab.starter), ("fixed", lab.solution):
    loader = subject.load(path.read_bytes(), str(path)).build_loader(recordings, seed=0, num_workers=2)
    with reads(loader.dataset) as seen:
        for _epoch in range(3):
            for _batch in loader:
                pass
            seen.take()
    drawn = {generator: f"{s.total()} draws from {len(s)} states" for generator, s in seen.total.states.items()}
    print(f"{name:6}  {len(seen.total.workers)} workers, {drawn or 'no generator was moved'}")

# %% [markdown]
# ## Three half fixes
#
# Two workers, two epochs of sixteen draws. `agree`: how many draws of one worker the other has too. `again`: how many
# different draws of the first epoch come back in the second.

# %%


class Draws(Dataset):
    """A draw from a generator that the dataset owns; the second number says which worker drew."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return self.rng.random(), get_worker_info().id


def by_number(worker):
    get_worker_info().dataset.rng = np.random.default_rng(worker)


def by_the_loaders_seed(worker):
    get_worker_info().dataset.rng = np.random.default_rng(get_worker_info().seed)


def numpys_own(worker):
    np.random.seed(worker)


for name, arguments in {
    "as it was": {},
    "np.random.seed": {"worker_init_fn": numpys_own},
    "the worker's number": {"worker_init_fn": by_number},
    "workers that last": {"persistent_workers": True},
    "the loader's seed": {"worker_init_fn": by_the_loaders_seed},
}.items():
    loader = DataLoader(Draws(), batch_size=2, num_workers=2, **arguments)
    epochs = []
    for _epoch in range(2):
        by_worker = {0: set(), 1: set()}
        for draws, workers in loader:
            for draw, worker in zip(draws.tolist(), workers.tolist(), strict=True):
                by_worker[worker].add(draw)
        epochs.append(by_worker)
    first, second = (epoch[0] | epoch[1] for epoch in epochs)
    agree = len(epochs[0][0] & epochs[0][1])
    print(f"{name:20} agree {agree} of 8    again {len(first & second)} of {len(first)}")

# %% [markdown]
# ## The whole of it

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
