# %% [markdown]
# # lab24, walked through: the deployed copy disagrees with the notebook
#
# A program was checked against its model when it was exported, with a difference of 0. In the field it answers
# everything and is wrong most of the time.
#
# This notebook judges the broken file and the fixed one, reads the program that was shipped, and asks two exporters the
# same question. **It gives the cause away.** Every number was computed when this page was built.

# %%
import logging
import warnings
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from IPython.display import HTML, Markdown
from torch.export import Dim

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab24"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=24) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    points = f"{earned} of {possible} points"
    print(f"{name:6}  {verdict.state:6}  {points}  torch {verdict.versions['torch']}, {verdict.device}")

# %% [markdown]
# ## The evidence
#
# Both files exported the same weights, and a process that has none of their code answered the same recordings.
# One line per check: the figure on which the broken file failed.

# %%
Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed))))

# %% [markdown]
# ## What was shipped
#
# A saved program can be read. Where is the question whether the pump is running? Where is the note?

# %%
warnings.simplefilter("ignore")  # all of these calls are deprecated, and say so each time
starter = subject.load(lab.starter.read_bytes(), str(lab.starter))
torch.manual_seed(0)
model = starter.build_model().eval()
with TemporaryDirectory() as folder:
    starter.export(model, Path(folder))
    program = torch.jit.load(Path(folder) / "monitor.pt")
print(program.code)

# %% [markdown]
# One head, a division by a constant, and no note. All that Python decided is gone.
#
# ## Asking before shipping
#
# The tracer can be handed a second recording to compare with. And `torch.export` does not need one: it refuses.

# %%
logging.disable(logging.CRITICAL)  # what is refused is raised as well
example = starter.example()
others = {
    "a running pump": {"readings": example["readings"] + torch.eye(6)[0]},
    "three readings": {"readings": example["readings"][:3]},
    "a note": example | {"text": torch.tensor([1, 2])},
}


def heard(export):
    try:
        with redirect_stderr(StringIO()):  # torch.export prints the graph up to where it stopped
            export()
    except Exception as refused:
        return f"raises {type(refused).__name__}"
    return "exports"


for name, other in others.items():
    trace = heard(lambda other=other: torch.jit.trace(model, (example,), check_inputs=[(other,)]))
    print(f"{name}: the trace answers {(program(other) - model(other)).abs().max():.2f} off; with check_inputs {trace}")
free = ({"readings": {0: Dim("length")}},)
print("torch.export:", heard(lambda: torch.export.export(model, (example,), dynamic_shapes=free)))

# %% [markdown]
# ## One cell of the grid
#
# The check at export looked at one cell: eight readings, a pump that stands still, no note. A cell holds the decimal
# digits on which the deployed copy and the model agree. Float32 has seven.

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
