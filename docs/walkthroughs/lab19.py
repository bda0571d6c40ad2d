# %% [markdown]
# # lab19, walked through: the values change between runs
#
# Three runs over the same scans with the same weights, and hundreds of maps differ. Nothing is raised. In a debugger
# all runs agree.
#
# This notebook judges the broken file and the fixed one, takes three races apart, and then asks what a second stream is
# for. **It gives the cause away.** Every number was computed when this page was built, on a CPU. The streams are a
# model that runs kernels and copies in orders that a card may choose.

# %%
import torch
from IPython.display import HTML, Markdown, display

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.streams import ORDERS, LateCard
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab19"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=19) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# One line per check: the figure on which the broken file failed. Then the batches with wrong maps, in the three orders.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## Three races, one at a time
#
# Each is a few lines; the right value is 2. Each shows in an order of its own, and PyTorch's checker finds it in any.


# %%
def read_too_early(card):
    x = torch.ones(1).pin_memory().to(card.device, non_blocking=True) + 1
    return x.to("cpu", non_blocking=True)


def used_too_early(card):
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.ones(1).pin_memory().to(card.device, non_blocking=True) + 1
    return (x + 0).cpu()


def given_away(card):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.full((1,), 2.0).pin_memory().to(card.device, non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    y = x + 0  # launched, and not run yet
    del x
    with torch.cuda.stream(side):  # takes the memory of x
        torch.full((1,), 9.0).pin_memory().to(card.device, non_blocking=True)
    return y.cpu()


for race in read_too_early, used_too_early, given_away:
    values = []
    for order in ORDERS:
        with LateCard(order) as card:
            values.append(f"{order} {card.host_reads(race(card)).item():g}")
    with LateCard("late") as card:
        card.host_reads(race(card))
    kinds = sorted({f"{r.operator} after {r.before}" for r in card.races})
    print(f"{race.__name__}: {', '.join(values)}\n  not ordered: {'; '.join(kinds)}")

# %% [markdown]
# ## record_stream does not wait, and waiting does not record
#
# What article A advises against the third race is not enough against the second, and the other way round.

# %%
files = {"solution": lab.solution}
files |= {name: lab.tests_path / "wrong" / f"{name}.py" for name in ("record_stream_alone", "waiting_alone")}
for name, path in files.items():
    file = subject.load(path.read_bytes(), str(path))
    found = [lab.measurement.modelled(file, file.predict, lab.measurement.inputs(seed=19), order) for order in ORDERS]
    told = ", ".join(f"{order} {f['wrong']}" for order, f in zip(ORDERS, found, strict=True))
    print(f"{name:20} batches with wrong maps: {told}; unordered uses {found[1]['races']}")

# %% [markdown]
# ## Right, and of no use
#
# Waiting for everything makes every race go away, and with it what the second stream was for. Two shares, of batches
# but the first: the copy may run while the model works on the batch before; the host did not wait for that batch first.

# %%
for name in ("one_stream", "waits_for_the_whole_side_stream", "synchronized_in_each_step", "copied_at_the_end"):
    path = lab.tests_path / "wrong" / f"{name}.py"
    file = subject.load(path.read_bytes(), str(path))
    found = lab.measurement.modelled(file, file.predict, lab.measurement.inputs(seed=19), "late")
    print(
        f"{name:32} wrong {found['wrong']}, beside {found['overlapping']:.0%}, ahead {found['launched_ahead']:.0%}, "
        f"pinned {found['pinned_kib']:.0f} KiB, card {found['card_kib']:.0f} KiB"
    )
