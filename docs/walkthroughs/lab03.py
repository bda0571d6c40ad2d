# %% [markdown]
# # lab03, walked through: segmentation eats the card
#
# A model for aerial photographs was tidied up. Since then a step on eight tiles of 512 by 512 wants more than twice the
# card that it used to fit.
#
# This notebook judges the broken file and the fixed one, follows the shapes through both, and then moves one line
# through the head. **It gives the cause away.** Every number was computed when this page was built.

# %%
import torch
from IPython.display import HTML, Markdown, display

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.memory import MIB
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab03"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=3) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# Both files were counted at the same real sizes and computed on the same small photographs. One line per check: the
# figure on which the broken file failed. Then the bytes alive in one step on eight tiles, beside torchvision's layout.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## Shapes
#
# What enters and leaves the main head's layers, in both files, for eight tiles. No tensor is allocated.

# %%
size = lab.measurement.COUNTED["tiles"]


def shapes(path) -> None:
    file = subject.load(path.read_bytes(), str(path))
    with torch.device("meta"):
        model = file.build(size.classes)
        for i, layer in enumerate(model.classifier):
            layer.register_forward_hook(lambda m, inputs, out, i=i: line(f"{i} {type(m).__name__}", inputs[0], out))
        model(torch.empty(size.photographs, 3, size.height, size.width))


def line(name: str, x: torch.Tensor, out: torch.Tensor) -> None:
    mib = [4 * t.numel() / MIB for t in (x, out)]
    print(f"  {name:14} {list(x.shape)!s:21} {mib[0]:6.0f} MiB -> {list(out.shape)!s:21} {mib[1]:6.0f} MiB")


for name, path in ("broken", lab.starter), ("fixed", lab.solution):
    print(name)
    shapes(path)

# %% [markdown]
# ## One line, four places
#
# The same heads; what moves is the interpolation. Peak and products of one step, as multiples of torchvision's layout.

# %%
measurement = lab.measurement
variants = {
    "features, both heads": lab.starter,
    "features, auxiliary head": lab.tests_path / "wrong" / "one_head_only.py",
    "before the last layer": lab.tests_path / "wrong" / "before_the_last_layer.py",
    "logits": lab.solution,
}
lines = ["| interpolated | tiles, peak | scenes, peak | tiles, products |", "|---|---:|---:|---:|"]
plain = {
    k: measurement.count(measurement.reference, measurement.reference_loss, s) for k, s in measurement.COUNTED.items()
}
for name, path in variants.items():
    file = subject.load(path.read_bytes(), str(path))
    found = {k: measurement.count(file.build, file.loss_of, s) for k, s in measurement.COUNTED.items()}
    peaks = [found[k]["peak_mib"] / plain[k]["peak_mib"] for k in found]
    lines.append(
        f"| {name} | {peaks[0]:.2f} | {peaks[1]:.2f} | {found['tiles']['tflop'] / plain['tiles']['tflop']:.1f} |"
    )
Markdown("\n".join(lines))
