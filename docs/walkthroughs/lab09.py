# %% [markdown]
# # lab09, walked through: in half precision it stops learning
#
# A model predicts the discharge of rivers and brooks. In float32 it learns both. In half precision it learns rivers;
# on brooks its error falls for a while and then stays where it is. Nothing is nan.
#
# This notebook judges the broken file and the fixed one, looks at what the optimizer gets, and then follows one
# gradient back through the layers. **It gives the cause away.** Every number was computed when this page was built.

# %%
import torch
from IPython.display import HTML, Markdown, display
from torch.nn import functional as F

from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.gradients import Gradients
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab09"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=9) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# Both files saw the same batches. One line per check: the figure on which the broken file failed. Then the share of
# each layer's gradient that is exactly zero when the optimizer gets it, on a brook.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## Where the gradient goes
#
# One batch from a brook, through the reference model, forward under autocast. The gradient is caught at the output of
# each layer, and compared with float64. float16 has nothing between 0 and 6e-8.
#
# Then the same with the loss times 65536.

# %%
measurement = lab.measurement
drawn = measurement.inputs(seed=9)["brook"]
gauges, readings, discharge = drawn["batches"][0]


def caught(half: bool, scale: float) -> dict[str, torch.Tensor]:
    """The gradients at the outputs of the linear layers, divided by `scale` again."""
    model, found = measurement.RunOff(), {}
    measurement.load(model, drawn["weights"])
    dtype = torch.float32 if half else torch.float64

    def catch(name):
        def forward_hook(layer, arguments, out):
            out.register_hook(lambda gradient: found.update({name: gradient.double() / scale}))

        return forward_hook

    for name in ("enter", "hidden", "leave"):
        getattr(model, name).register_forward_hook(catch(name))
    with torch.autocast("cpu", dtype=torch.float16, enabled=half):
        out = model.to(dtype)(gauges, readings.to(dtype))
    (scale * F.mse_loss(out.to(dtype), discharge.to(dtype))).backward()
    return found


exact = caught(half=False, scale=1.0)
for scale in (1.0, 65536.0):
    print(f"loss times {scale:g}")
    for name, gradient in caught(half=True, scale=scale).items():
        size, zeros = exact[name].abs().median(), (gradient == 0).double().mean()
        print(f"  at the output of {name:6}  typical size {size:.0e}, exactly zero {zeros:6.1%}")

# %% [markdown]
# ## Four ways to use a scale
#
# The order of the lines decides. Below is one step on a river and one on a flood, the gradient clipped to norm 0.1.
# In a flood the scaled gradient overflows.


# %%
def one_step(regime: str, lines: tuple[str, ...], half: bool = True) -> tuple[Gradients, torch.amp.GradScaler]:
    """One step on the first batch of a regime; `lines` says what comes after backward, in order."""
    drawn = measurement.inputs(seed=9)[regime]
    gauges, readings, discharge = drawn["batches"][0]
    model = measurement.RunOff()
    measurement.load(model, drawn["weights"])
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", enabled=half)
    do = {
        "clip": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1),
        "unscale_": lambda: scaler.unscale_(optimizer),
        "scaler.step": lambda: (scaler.step(optimizer), scaler.update()),
        "optimizer.step": optimizer.step,
    }
    with Gradients(model) as watched:
        with torch.autocast("cpu", dtype=torch.float16, enabled=half):
            out = model(gauges, readings)
        scaler.scale(F.mse_loss(out.float(), discharge)).backward()
        for line in lines:
            do[line]()
        watched.end_step()
    return watched, scaler


orders = [
    ("unscale_", "clip", "scaler.step"),
    ("clip", "scaler.step"),
    ("clip", "unscale_", "scaler.step"),
    ("clip", "optimizer.step"),
]
for regime in ("river", "flood"):
    exact, _ = one_step(regime, ("clip", "optimizer.step"), half=False)
    print(f"{regime}: float32 steps with norm {exact.steps[0].norm:.2e}")
    for lines in orders:
        watched, scaler = one_step(regime, lines)
        (found,) = watched.steps
        norm = f"norm {found.norm:8.2e}" if found.calls else "no step      "
        print(f"  {', '.join(lines):27}  {norm}  {found.moved:4.0%} of the weights moved, scale {scaler.get_scale():g}")

# %% [markdown]
# The bare step looks right on the river, because the bound binds and hides the scale. In a flood it writes nan into the
# weights. The scaler skips that step and halves its scale.
#
# ## Parameters in bfloat16
#
# bfloat16 has the range of float32, so no gradient is lost. But it has eight bits: a step smaller than about a
# 256th of the weight is rounded away. `stuck` counts weights that had a gradient and did not move.

# %%
gauges, readings, discharge = drawn["batches"][0]
for dtype in (torch.float32, torch.bfloat16):
    model = measurement.RunOff()
    measurement.load(model, drawn["weights"])
    model.to(dtype)
    optimizer = measurement.REGIMES["brook"].optimizer(model)
    with Gradients(model) as watched:
        F.mse_loss(model(gauges, readings.to(dtype)).float(), discharge).backward()
        optimizer.step()
        watched.end_step()
    print(f"parameters {dtype}")
    print(watched.report())
