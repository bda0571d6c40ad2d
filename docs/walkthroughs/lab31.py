# %% [markdown]
# # lab31, walked through: the checkpoint loads, and the model answers wrongly
#
# Fifty blocks in a row, one more in version 2, and checkpoints of version 1 that all load without a word. This notebook
# judges the broken file and the fixed one, looks at what went where, and at what `strict=False` returns. **It gives the
# cause away.** Every number was computed when this page was built.

# %%
import torch
from IPython.display import HTML, Markdown
from torch import nn

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab31"]
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
# ## Whose weights are where
#
# Block 7 of version 1 is filled with sevens, and so on. Then version 2 says what its blocks have.

# %%
cpu, names = torch.device("cpu"), ["2", "adapter", "3", "4", "48", "49"]
for kind, path in ("broken", lab.starter), ("fixed", lab.solution):
    file = subject.load(path.read_bytes(), str(path))
    state = {key: torch.full_like(value, int(key.partition(".")[0])) for key, value in nn.Sequential(
        *[file.Block() for _ in range(50)]
    ).state_dict().items()}  # fmt: skip
    torch.manual_seed(0)
    model = file.build(2, cpu)
    file.load(model, state)
    print(kind, {name: round(file.block(model, name).linear.bias[0].item(), 3) for name in names})

# %% [markdown]
# In the broken file the adapter has block 3's weights, block 3 has block 4's, and block 49 has what it was born with.
#
# ## What `strict=False` returns
#
# Whoever reads it is told. With a prefix nothing is loaded at all.

# %%
old, new = (nn.Sequential(*[nn.Linear(8, 8) for _ in range(count)]) for count in (50, 51))
for prefix in ("", "_orig_mod."):
    result = new.load_state_dict({prefix + key: value for key, value in old.state_dict().items()}, strict=False)
    print(f"prefix {prefix!r:14} missing {len(result.missing_keys):3}, unexpected {len(result.unexpected_keys):3}")

# %% [markdown]
# ## And a Sequential can be looked into
#
# An article says that it can be neither hooked nor frozen in part.

# %%
seen = []
old[17].register_forward_hook(lambda layer, given, answer: seen.append(tuple(answer.shape)))
old[17].requires_grad_(False)
old(torch.randn(4, 8))
print(f"the hook on layer 17 saw {seen}; frozen: {[n for n, p in old.named_parameters() if not p.requires_grad]}")
begins = {name.partition(".")[0] for name, _ in old.named_parameters() if name.startswith("1")}
print(f"layers whose names begin with 1: {len(begins)}")

# %%
HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame)))
