# %% [markdown]
# # lab13, walked through: torch.compile is on, and a step takes as long as before
#
# The first steps of a run crawl. After that a step takes exactly as long as before torch.compile went in.
#
# This notebook judges the broken file and the fixed one, asks torch.compile what it does, and takes the four causes
# apart. **It gives the cause away.** Every number below was computed when this page was built.

# %%
import logging

import torch
from IPython.display import HTML, Markdown

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.graphs import Counter, operators
from breakfix.render import figures, tables
from breakfix.zygote import Engine

logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # its warnings carry times and process numbers
lab = Catalog.read()["lab13"]
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
# ## What torch.compile says
#
# Twelve batches of twelve shapes through each file. `Counter` is the backend: it counts, and runs each graph as it was
# captured. Then one more call under the profiler: what runs in a graph, and what outside?

# %%
files = {name: subject.load(p.read_bytes(), str(p)) for name, p in (("broken", lab.starter), ("fixed", lab.solution))}


def twelve_calls(file):
    torch.compiler.reset()
    counter, generator = Counter(), torch.Generator().manual_seed(3)
    classifier = file.compiled(file.build(torch.device("cpu")), counter)
    for _ in range(12):
        classifier(file.messages(generator)[0])
    tokens, _ = file.messages(generator)
    seen = operators(lambda: classifier(tokens))
    return counter, f"{sum(seen.inside.values())} operators in graphs, {sum(seen.outside.values())} outside"


for name, file in files.items():
    counter, seen = twelve_calls(file)
    print(f"--- {name}\n{counter}\none more call: {seen}\n")

# %% [markdown]
# ## One cause at a time
#
# The same model, with the same four lines, and any three of them repaired. Each one alone is enough.


# %%
class Piece(torch.nn.Module):
    """A sorter in small: `faults` says which of its lines are as they were."""

    def __init__(self, faults):
        super().__init__()
        self.layer, self.faults, self.steps, self.log = torch.nn.Linear(4, 4), faults, 0, []
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        if "number" in self.faults:
            self.steps += 1
            share = self.steps / 100
        else:
            self.count += 1
            share = self.count / 100
        h = self.layer(x) * share
        peak = h.abs().max()
        if "branch" in self.faults:
            if peak > 3:
                h = h * (3 / peak)
        else:
            h = h * (3 / peak.clamp(min=3))
        if "list" in self.faults:
            self.log.append(h.detach().sum())
        return h.sum()


for fault in ("number", "branch", "list", "shapes", "none of them"):
    torch.compiler.reset()
    counter = Counter()
    run = torch.compile(Piece(fault), backend=counter, dynamic=False if fault == "shapes" else None)
    runs = []
    for size in range(2, 14):
        before = counter.runs
        run(torch.ones(size, 4))
        runs.append(counter.runs - before)
    print(f"{fault:12}  {len(counter.graphs):2} graphs; graphs run per call: {runs}")

# %% [markdown]
# A number, a list and a shape make it compile again until it is given up; then a call runs no graph at all. A branch
# doubles the graphs, for good.
#
# ## Why not `torch.where`
#
# It makes one graph, and both arms are differentiated. Take a batch with nothing in it: the largest activation is 0.

# %%
ways = {
    "if": lambda h, peak: h * (3 / peak) if peak > 3 else h,
    "where": lambda h, peak: torch.where(peak > 3, h * (3 / peak), h),
    "clamp the quotient": lambda h, peak: h * (3 / peak).clamp(max=1),
    "clamp the divisor": lambda h, peak: h * (3 / peak.clamp(min=3)),
}
for name, limit in ways.items():
    for what, values in ("nothing", [0.0, 0.0]), ("quiet", [1.0, -2.0]), ("loud", [6.0, -1.0]):
        h = torch.tensor(values, requires_grad=True)
        limit(h, h.abs().max()).sum().backward()
        print(f"{name:18}  {what:7}  gradient {[round(g, 3) for g in h.grad.tolist()]}")

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
