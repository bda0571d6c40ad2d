# %% [markdown]
# # lab20, walked through: two cards are no faster than one
#
# A tagger trains with gradient accumulation. Since a second card went in, it gets through fewer samples per second.
#
# This notebook judges the broken file and the fixed one, looks at what the ranks said to each other, and asks what that
# would cost on links you may have. **It gives the cause away.** Every number was computed when this page was built.

# %%
from IPython.display import HTML, Markdown, display

from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes import traffic
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab20"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=20) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    told = f"{name:6}  {verdict.state:6}  {earned} of {possible} points"
    print(f"{told}  torch {verdict.versions['torch']}, {verdict.device}")

# %% [markdown]
# ## The evidence
#
# Two and four ranks, forked on one machine, talked gloo over the loopback. A process group wrote down every collective;
# PyTorch's own Flight Recorder had to agree. One line per check: the figure on which the broken file failed.

# %%
Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed))))

# %% [markdown]
# ## One optimizer step, collective by collective
#
# Rank 0 of two, four micro-batches. float32 is gradients, but for one message of four bytes: how many samples there
# are. int32 is the ranks telling each other which parameters took part. All of them did, as always.
#
# Then the same file with three and with one micro-batch. The model stays; the bytes follow the number of backwards.

# %%
seen = {name: decode(verdict.frame) for name, verdict in (("broken", broken), ("fixed", fixed))}

for name, evidence in seen.items():
    step = [traffic.Collective(*c) for c in evidence["two.collectives"][0][-1]]
    sizes = sorted(c.bytes for c in step if c.dtype == "float32" and c.bytes > 4)
    print(f"{name}: {len(step)} collectives, those of gradients from {sizes[0] / 1e6:.3f} to {sizes[-1] / 1e6:.3f} MB")
    print(traffic.table(step), end="\n\n")

for regime, label in ("two", "four"), ("two.ragged", "three"), ("two.single", "one"):
    sent = ", ".join(f"{name} {evidence[f'{regime}.gradients_per_step']:.2f}" for name, evidence in seen.items())
    print(f"{label:5} micro-batches per step, gradients sent: {sent}")

# %% [markdown]
# ## What it would cost
#
# **Modelled, not measured**: latency for each collective, transfer at the link's nominal speed, nothing overlapped. On
# the slow link the bytes decide, on the fast one the number of messages. So one fault hides behind the other, depending
# on where you look. Below, the bytes per step as they were counted.

# %%
lines = ["| modelled, ms per step | broken | fixed |", "|---|---|---|"]
for link, cost in seen["broken"]["two.modelled_ms"].items():
    lines.append(f"| {link} | {cost:.2f} | {seen['fixed']['two.modelled_ms'][link]:.2f} |")
display(Markdown("\n".join(lines)), HTML(figures.draw(lab, seen["broken"], seen["fixed"])))
