# %% [markdown]
# # lab15, walked through: the same checkpoint scores differently with another batch size
#
# A tagger is validated after every epoch. Its accuracy is 1.00 in batches of one and 0.79 in a batch of 101, and it
# never falls.
#
# This notebook judges the broken file and the fixed one, and takes the four figures apart on ten tokens. **It gives the
# cause away.** Every number was computed when this page was built.

# %%
import warnings

import torch
from IPython.display import HTML, Markdown, display
from torch.nn import functional as F
from torch.utils.data import DistributedSampler
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab15"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=15) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# Both files saw the same answers. One line per check: the figure on which the broken file failed. Then macro F1 of one
# model on one data set, by batch size.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## Ten tokens, two batches
#
# One batch of two tokens, one of eight; three tags. What can be had from the figures of the batches? Accuracy, if they
# are weighted. The others are wrong either way, and would be for two batches of five.

# %%
warnings.filterwarnings("ignore", message="No .* samples in targets")
generator = torch.Generator().manual_seed(10)
tags = torch.tensor([0, 0, 1, 2, 2, 1, 1, 0, 2, 1])
logits = 2 * torch.randn(10, 3, generator=generator) + F.one_hot(tags, 3)


def scores(logits: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
    """Accuracy, F1, AUROC and perplexity."""
    metrics = MulticlassAccuracy(3, average="micro"), MulticlassF1Score(3), MulticlassAUROC(3)
    return torch.stack([*(m(logits.softmax(-1), tags) for m in metrics), F.cross_entropy(logits, tags).exp()])


def line(told: str, values: torch.Tensor) -> None:
    print(f"{told:24}" + "".join(f"  {value:.3f}" for value in values))


print(" " * 24 + "  acc    F1     AUROC  perplexity")
for sizes in [2, 8], [5, 5]:
    parts = [scores(*batch) for batch in zip(logits.split(sizes), tags.split(sizes), strict=True)]
    line(f"batches of {sizes[0]} and {sizes[1]}, mean", torch.stack(parts).mean(0))
    line("  weighted", sum(part * size for part, size in zip(parts, sizes, strict=True)) / 10)
line("all ten tokens", scores(logits, tags))

# %% [markdown]
# ## What a batch cannot know
#
# AUROC looks at a batch to tell logits from probabilities. Here are the same ten tokens with small logits, one batch
# after the other. With probabilities handed over, there is nothing to guess.

# %%
small = torch.rand(10, 3, generator=generator)
small[0] = torch.tensor([-3.0, 4.0, -1.0])
for told, given in ("logits", small), ("probabilities", small.softmax(-1)):
    found = []
    for size in (1, 5, 10):
        metric = MulticlassAUROC(3)
        for batch in zip(given.split(size), tags.split(size), strict=True):
            metric.update(*batch)
        found.append(metric.compute().item())
    print(f"{told:13}  in batches of 1, 5 and 10: " + ", ".join(f"{value:.3f}" for value in found))

# %% [markdown]
# ## Who counts twice
#
# The shares that `DistributedSampler` makes of seven sequences for three ranks, and the shares of the fixed file.

# %%
for rank in range(3):
    print(f"rank {rank}: {list(DistributedSampler(range(7), 3, rank, shuffle=False))}  {list(range(rank, 7, 3))}")
