# %% [markdown]
# # lab36, walked through: out of memory, with memory free
#
# A reader answers questions about long files. The card has 160 MiB. It refuses 20 MiB when 99 are in use.
#
# This notebook judges the broken file and the fixed one, reads a snapshot, and tries the well-known remedies.
# **It gives the cause away.** Every number was computed when this page was built, on a CPU: allocations are real, and
# how a card would pack them is modelled.

# %%
import torch
from IPython.display import HTML, Markdown, display

from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.segments import MIB, Segments, Trace, live_bytes, replay
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab36"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=36) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")
print(decode(broken.frame)["even.refusal"])

# %% [markdown]
# ## The evidence
#
# One line per check: the figure on which the broken file failed. Then memory over one answer, on a card with room.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## One tensor that grows
#
# 20, 22, ... 38 MiB, each freed when the next is there. Never more than two are alive.

# %%
card = Segments()
for i, size in enumerate(range(20, 40, 2)):
    card.allocate(i, size * MIB)
    if i:
        card.free(i - 1)
print(card.report())
card.empty_cache()
print("after empty_cache:", card.report().splitlines()[0])

# %% [markdown]
# Emptying the cache gives back all that is not in use, for nothing is in the way. In the reader something is.
#
# ## The card at the moment of the refusal
#
# All allocations of one answer, recorded, and packed into 160 MiB until the card refuses. A snapshot lists segments and
# their blocks; `torch.cuda.memory._snapshot()` has the same form. What was not in use at all has been given back.


# %%
def recorded(path) -> Trace:
    """All allocations of one answer, about 16 files of 5120 tokens in even passages."""
    namespace = {"__name__": "reader"}
    exec(compile(path.read_text(), path.name, "exec"), namespace)
    torch.manual_seed(0)
    model, ids = namespace["build"](torch.device("cpu")), torch.randint(512, (16, 5120))
    with Trace("cpu") as trace:
        trace.add(model)
        model.answer((passage.clone() for passage in ids.split(512, dim=1)), length=5120, words=8)
        trace.mark()
    return trace


at_refusal = replay(recorded(lab.starter).events, 160 * MIB)
print(at_refusal.report())
for segment in at_refusal.snapshot()["segments"]:
    if segment["segment_type"] == "large":
        blocks = [
            f"{b['size'] / MIB:.1f}" if b["state"] != "inactive" else f"({b['size'] / MIB:.1f})"
            for b in segment["blocks"]
        ]
        print(f"{segment['total_size'] // MIB:3} MiB: {' '.join(blocks)}")

# %% [markdown]
# In brackets: free. The segments of 20 MiB cannot go back for the sake of 2 MiB here and there, the features of
# passages. What is free in them and beside them would hold the 20 MiB three times, had it been in one piece.
#
# ## The remedies

# %%
for name, path in ("broken", lab.starter), ("fixed", lab.solution):
    events = recorded(path).events
    print(f"{name}: at most {max(live_bytes(events)) / MIB:.0f} MiB alive, measured")
    for settings, expandable in ("default", False), ("expandable_segments", True):
        large, small = (replay(events, capacity, expandable) for capacity in (None, 160 * MIB))
        outcome = "refused" if small.refused else f"fits, {small.retries} retries"
        print(f"  {settings:20} reserved {large.reserved_peak / MIB:.0f} MiB; on the card of 160 MiB: {outcome}")
