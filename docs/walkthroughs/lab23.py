# %% [markdown]
# # lab23, walked through: the export passes every check, and production answers differ
#
# A model goes from PyTorch to ONNX. Export, checker and parity test are green. Long titles get wrong categories,
# photos with odd sides get other thumbnails than the ones that were approved, and broken titles get an answer.
#
# This notebook judges the broken file and the fixed one, looks for the proof that was there before any request, and
# shows where the two runtimes part. **It gives the cause away.** Every number was computed when this page was built.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnxruntime
import torch
from IPython.display import HTML, Markdown

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.parity import first_divergence, onnx_callable
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab23"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=23) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    points = f"{earned} of {possible} points"
    print(f"{name:6}  {verdict.state:6}  {points}  torch {verdict.versions['torch']}, {verdict.device}")

# %% [markdown]
# ## The evidence
#
# Both files answered the same thirty requests, in a process that has onnxruntime and no torch. A check compares the
# answers with a float64 reference, and with what the model says in PyTorch.
# One line per check: the figure on which the broken file failed.

# %%
Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed))))

# %% [markdown]
# ## The proof before the first request
#
# Export the broken file once more, and keep what `torch.onnx.export` returns. The exported program knows one of the
# four faults: it has an upper end for the length of a title. It even refuses to run on a longer one. The ONNX file
# knows nothing of this.
#
# The others are in no range. The file's resize is given sizes and no factor. A constant came out of NumPy. For these,
# ask the file itself: which layer is the first to differ? And an index below zero means something else in ONNX: send
# one to both sides.

# %%
starter = subject.load(lab.starter.read_bytes(), str(lab.starter))
torch.manual_seed(0)
model = starter.build_model().eval()
exported, told = torch.onnx.export, []
torch.onnx.export = lambda *arguments, **options: told.append(exported(*arguments, **options))  # the file drops it


def heard(side, title):
    try:
        side(*title)
    except Exception as refused:
        return f"raises {type(refused).__name__}"
    return "answers"


with TemporaryDirectory() as folder:
    starter.export(model, Path(folder))
    torch.onnx.export, program = exported, told[0].exported_program
    print("ranges of the sizes:", sorted(str(found) for found in program.range_constraints.values()))

    nine_tokens = torch.arange(18).reshape(2, 9), torch.rand(2, 3, 16, 16)
    odd_photo = torch.arange(12).reshape(2, 6), torch.rand(2, 3, 15, 13)
    try:
        program.module()(*nine_tokens)
    except AssertionError as refused:
        print("the program, asked for nine tokens:", str(refused).splitlines()[0])

    path = Path(folder) / "model.onnx"
    resize = next(node for node in onnx.load(path).graph.node if node.op_type == "Resize")
    print("the file's resize is given", dict(zip(("roi", "scales", "sizes"), map(bool, resize.input[1:]), strict=True)))
    print("nine tokens, first layer that differs:", first_divergence(model, path, nine_tokens).at)
    print("odd photo, first layer that differs:  ", first_divergence(model, path, odd_photo).at)

    onnxruntime.set_default_logger_severity(4)  # what fails is raised as well
    serve = onnx_callable(path)
    for token in (0, 199, -1, 200):
        title = torch.full((1, 6), token), torch.rand(1, 3, 16, 16)
        sides = [("PyTorch", model), ("production", serve)]
        print(f"token {token}:", ", ".join(f"{name} {heard(side, title)}" for name, side in sides))

# %% [markdown]
# The branch would be the next to differ, once the constant is cured. Fix one, and ask again.
#
# ## What the parity test saw
#
# One cell of this grid: six tokens, 16 x 16. Rows are title lengths, columns are photo sizes; a cell holds the decimal
# digits on which production and PyTorch agree. Float32 has seven.

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
