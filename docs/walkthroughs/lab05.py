# %% [markdown]
# # lab05, walked through: host memory climbs, epoch after epoch
#
# A classifier trains on CT scans. Each epoch's scans are half the size of the last one's. Yet host memory grows, until
# the pod is killed.
#
# This notebook judges the broken file and the fixed one, counts what waits and where, and then replays three epochs by
# hand. **It gives the cause away.** Every number was computed when this page was built.

# %%
import warnings

import torch
from IPython.display import HTML, Markdown, display
from torch.utils.data import DataLoader, Dataset

from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.loader import settle, shared_memory_bytes
from breakfix.probes.pinned import HostPool, watch_pinned
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab05"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=1) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    points = f"{earned} of {possible} points"
    print(f"{name:6}  {verdict.state:6}  {points}  torch {verdict.versions['torch']}, {verdict.device}")

# %% [markdown]
# ## The evidence
#
# Both files read the same scans. One line per check: the figure on which the broken file failed. Then what was held in
# pinned memory over three epochs, beside the scans that had been read and not yet been trained on. What waits halves
# with every epoch; what is held never falls.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## How many wait, and where
#
# A loader of rows of 64 KiB in batches of four, so a batch is 256 KiB. Take one batch, let the loader come to rest, and
# count. Workers times `prefetch_factor` batches wait, beside the one in hand. Pinned, they lie in memory of the
# training process, and `/dev/shm` is empty. Not pinned, they lie in `/dev/shm`. Before the first batch there is
# nothing, whatever the number of workers: there is no pool of 512 MB per worker.

# %%
warnings.simplefilter("ignore")


class Rows(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        return torch.full((64, 256), float(i))


def count(workers: int, prefetch: int, pin: bool) -> str:
    started = shared_memory_bytes()
    loader = DataLoader(Rows(), batch_size=4, num_workers=workers, prefetch_factor=prefetch, pin_memory=pin)
    with watch_pinned("cpu") as pinned:
        before = pinned.held
        for _batch in loader:
            settle()
            shared = shared_memory_bytes() - started
            return f"| {workers} | {prefetch} | {pin} | {before >> 10} | {pinned.live >> 10} | {shared >> 10} |"


head = "| workers | prefetch | pinned | KiB pinned before | KiB pinned, waiting and in hand | KiB in /dev/shm |\n"
cases = [(1, 2, True), (2, 2, True), (4, 2, True), (2, 8, True), (2, 8, False)]
Markdown(head + "|---:|---:|---|---:|---:|---:|\n" + "\n".join(count(*case) for case in cases))

# %% [markdown]
# ## How large, and for how long
#
# PyTorch's allocator rounds each pinned tensor up to a power of two and keeps the block for its own size. Sixty-eight
# scans wait at once: 17 batches of four. Let them all be 24 slices long, then 12, then 6, then 24 again. The model is
# twelve lines; a test compares it with PyTorch's own allocator, compiled over malloc, to the byte.
#
# The third line has 6 MiB of data, and 59.5 are held. The fourth adds nothing: its blocks are there. That is why a
# dataset of one size looks innocent.

# %%
pool = HostPool()
for slices in 24, 12, 6, 24:
    blocks = [pool.take(slices * 64 * 64 * 4) for _ in range(68)]
    data, used, held = (n / 2**20 for n in (68 * slices * 64 * 64 * 4, pool.used, pool.held))
    print(f"{slices:2} slices: {data:5.2f} MiB of data, {used:4.1f} in use, {held:4.1f} held")
    for block in blocks:
        pool.give_back(*block)
print(f"torch.cuda.memory_allocated() says {torch.cuda.memory_allocated()}: it counts the card's memory")
