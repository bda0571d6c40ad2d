# %% [markdown]
# # lab14, walked through: between two steps the GPU has nothing to do
#
# A GPU that is busy for half of each step, and for nearly all of it with the log off. And a profiler that was to show
# why, and left no trace.
#
# This notebook judges the broken file and the fixed one, counts what the loop asks of the device, and opens the trace.
# **It gives the cause away.** Every number below was computed when this page was built, on a CPU: there nothing waits,
# and the count is the same.

# %%
import gzip
import json
import tempfile
from collections import Counter
from pathlib import Path

import torch
from IPython.display import HTML, Markdown
from torchmetrics import MeanMetric

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.reads import Reads
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab14"]
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
# ## Who asks
#
# A hundred steps of each file, a report every twenty. Each line that asks a tensor for a number, and how often. Where a
# library asks, `via` has its line.

# %%
files = {name: subject.load(p.read_bytes(), str(p)) for name, p in (("broken", lab.starter), ("fixed", lab.solution))}
logged = {}
for name, file in files.items():
    torch.manual_seed(0)
    model, batches, logged[name] = file.build(torch.device("cpu")), list(file.belt(100)), []
    with tempfile.TemporaryDirectory() as folder, Reads() as reads:
        file.train(model, batches, 20, lambda *entry, to=logged[name]: to.append(entry), Path(folder))
    print(f"--- {name}: {reads}\n")

same = {(tag, step): value for tag, value, step in logged["broken"]}
error = max(abs(same[tag, step] - value) for tag, value, step in logged["fixed"])
print(f"{len(logged['broken'])} and {len(logged['fixed'])} values logged; they differ by {error:.0e} at most")

# %% [markdown]
# One f-string for a log level that is off, and the checks that torchmetrics makes by default, ask more often than the
# log itself.
#
# ## The mean that changes without a word
#
# `nan_strategy="disable"` is the advice for aggregators. It has a side effect that a count of reads does not see.

# %%
for strategy in ("warn", "disable"):
    mean = MeanMetric(nan_strategy=strategy)
    with Reads() as reads:
        mean.update(torch.tensor(1.0), weight=3)
        mean.update(torch.tensor(5.0), weight=1)
    print(f"{strategy:8} {reads.count} reads; the mean of 1 with weight 3 and 5 with weight 1: {mean.compute():.0f}")

# %% [markdown]
# That is why the fixed file hands in one loss per sample, and no weights.
#
# ## The trace
#
# The fixed file tells the profiler when a step ends. What three steps look like, from the file that Perfetto opens:

# %%
trace = json.loads(gzip.decompress(decode(fixed.frame)["every 20.trace.gz"].tobytes()))
names = Counter(event["name"] for event in trace["traceEvents"] if event.get("ph") == "X")
wanted = ("ProfilerStep#", "Optimizer.step#", "aten::linear", "aten::_local_scalar_dense")
for name in sorted(n for n in names if n.startswith(wanted)):
    print(f"{names[name]} x {name}")
print(f"{decode(broken.frame)['every 20.trace.files']} traces of the broken file")

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
