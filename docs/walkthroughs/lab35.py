# %% [markdown]
# # lab35, walked through: the same text, another batch, another answer
#
# A service makes vectors of tickets and writes replies. The same ticket gets one answer alone and another in company.
#
# This notebook judges the broken file and the fixed one, and then asks PyTorch who attends to whom.
# **It gives the cause away.** Every number was computed when this page was built.

# %%
from types import ModuleType

import torch
from IPython.display import HTML, Markdown, display
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab35"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=35) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# One line per check: the figure on which the broken file failed. Then one text's vector in four batches.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## Who attends to whom
#
# If all scores are equal and the values are the unit vectors, the output of attention *is* the matrix of who attends to
# whom. A row is a query, a column a key.


# %%
def attends(queries: int, keys: int, **mask) -> torch.Tensor:
    """[queries, keys] the shares that scaled_dot_product_attention gives."""
    q, k = torch.zeros(1, 1, queries, keys), torch.zeros(1, 1, keys, keys)
    return F.scaled_dot_product_attention(q, k, torch.eye(keys).view(1, 1, keys, keys), **mask)[0, 0]


torch.set_printoptions(precision=2)
print("is_causal, four queries and four keys\n", attends(4, 4, is_causal=True))
print("is_causal, one query after the cache\n", attends(1, 4, is_causal=True))
print("lined up at the end\n", attends(1, 4, attn_mask=causal_lower_right(1, 4)))

# %% [markdown]
# Now one boolean mask, True at the two tokens of a text and False at its padding, given to both kinds of attention.

# %%
real = torch.tensor([True, True, False, False])
layer = nn.MultiheadAttention(4, 1, batch_first=True)
x = torch.zeros(1, 4, 4)
nothing = torch.zeros(1, 4, dtype=torch.bool)
print("scaled_dot_product_attention ", attends(1, 4, attn_mask=real.view(1, 4))[0])
print("MultiheadAttention           ", layer(x, x, x, key_padding_mask=real.view(1, 4))[1][0, 0].detach())
print("MultiheadAttention, all True ", layer(x, x, x, key_padding_mask=~nothing)[1][0, 0].detach())
print("the same without weights     ", layer(x, x, x, key_padding_mask=~nothing, need_weights=False)[0][0, 0].detach())

# %% [markdown]
# ## One repair at a time
#
# The fixed file, with one of its repairs taken back in turn. How far are its answers from those that it gives to one
# text at a time?

# %%
measurement = lab.measurement
source = lab.solution.read_text()
repairs = {
    "none": ("", ""),
    "the mask of the encoder": ("key_padding_mask=~real", "key_padding_mask=real"),
    "the mean": ("x.masked_fill(~real.unsqueeze(-1), 0).sum(dim=1) / lengths.clamp(min=1)", "x.mean(dim=1)"),
    "the mask of the decoder": (" & (places >= padding.unsqueeze(2))", " & (padding.unsqueeze(2) >= 0)"),
    "positions": ("(queries - padding).clamp(min=0)", "queries"),
    "the causal mask after the cache": (
        "(places <= queries.unsqueeze(1))",
        "(places <= torch.arange(len(queries))[:, None])",
    ),
}
given = measurement.inputs(seed=35)
texts = given["texts"]["mixed"]
for taken_back, (right, wrong) in repairs.items():
    assert right in source
    module = ModuleType("serve")
    exec(source.replace(right, wrong) if right else source, module.__dict__)
    model = module.build(torch.device("cpu"))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(given["weights"][name])
        if taken_back == "none":
            exact = torch.cat([model.embed([text]) for text in texts])
            tokens, logits = zip(*(model.complete([text], 3) for text in texts), strict=True)
            logits = torch.cat(logits)
        vectors, (_, said) = model.embed(texts), model.complete(texts, 3)
    error = [
        float((a - b).norm() / b.norm())
        for a, b in ((vectors, exact), (said[:, 0], logits[:, 0]), (said[:, 1], logits[:, 1]))
    ]
    shown = [f"{e:.2f}" if e > 1e-3 else "  ok" for e in error]
    print(f"taken back: {taken_back:32}  vectors {shown[0]}  first word {shown[1]}  second word {shown[2]}")
