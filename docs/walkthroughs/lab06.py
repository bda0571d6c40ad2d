# %% [markdown]
# # lab06, walked through: cut into small batches, it trains differently
#
# A batch of 52 recordings no longer fits the card. It is cut into parts of four, with one update per batch as before.
# The training loss is better than ever, and validation is far worse.
#
# This notebook judges the broken file and the fixed one, takes the two faults apart, and counts what cutting saves.
# **It gives the cause away.** Every number was computed when this page was built.

# %%
import copy

import torch
import torchvision
from IPython.display import HTML, Markdown, display
from torch import nn
from torch.nn.functional import cross_entropy

from breakfix import subject
from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.probes.memory import MIB, Card
from breakfix.probes.parity import relative_error
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab06"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=6) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed {fixed.seed}")

# %% [markdown]
# ## The evidence
#
# Both files saw the same batches. One line per check: the figure on which the broken file failed. Then, for the file's
# own model, how far one update is from that with the whole batch, by the number of recordings that go in at a time.

# %%
display(Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed)))))
display(HTML(figures.draw(lab, decode(broken.frame), decode(fixed.frame))))

# %% [markdown]
# ## Two faults, one at a time
#
# Two ways to weigh the parts, two kinds of normalization. The gradient of one batch, cut into parts of eight, is
# compared with that of the whole batch: once with a label everywhere, once with many here and few there.
#
# Only the last line is right in both columns. With BatchNorm no way of weighing helps.

# %%
measurement = lab.measurement
drawn = measurement.inputs(seed=6)
batches = {"labels even": drawn["batches"]["even"][0], "labels uneven": drawn["batches"]["uneven"][0]}


def network(norm: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), norm(16), nn.ReLU(), nn.Conv1d(16, 4, 1))


def mean_of_means(model, parts):
    for recordings, labels in parts:
        (cross_entropy(model(recordings), labels) / len(parts)).backward()


def sum_over_count(model, parts):
    count = sum((labels != -100).sum() for _, labels in parts)
    for recordings, labels in parts:
        (cross_entropy(model(recordings), labels, reduction="sum") / count).backward()


def gradient(model, accumulate, batch, size):
    model, (recordings, labels) = copy.deepcopy(model), batch
    accumulate(model, list(zip(recordings.split(size), labels.split(size), strict=True)))
    return measurement.flat(p.grad for p in model.parameters())


norms = {"BatchNorm": nn.BatchNorm1d, "GroupNorm": lambda channels: nn.GroupNorm(1, channels)}
print(f"{'':27}  {'  '.join(batches)}")
for norm, make in norms.items():
    for accumulate in (mean_of_means, sum_over_count):
        errors = []
        for batch in batches.values():
            cut, whole = (gradient(network(make), accumulate, batch, size) for size in (8, 99))
            errors.append(relative_error(cut, whole))
        print(f"{norm}, {accumulate.__name__:16}  {errors[0]:11.2f}  {errors[1]:13.2f}")

# %% [markdown]
# ## The training loss looks better
#
# The file's own training, eighty updates, four recordings at a time and all at once. With BatchNorm, small parts make
# the training loss *better*. The fixed file prints the same either way.

# %%
for name, path in ("broken", lab.starter), ("fixed", lab.solution):
    file = subject.load(path.read_bytes(), str(path))
    for micro in (4, 52):
        torch.manual_seed(0)
        generator, model = torch.Generator().manual_seed(3), file.build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        held_out = file.draw(400, generator)
        losses = [file.train_step(model, optimizer, file.draw(52, generator), micro) for _ in range(80)]
        found = file.accuracy(model, held_out)
        print(f"{name:6} {micro:2} at a time: training loss {sum(losses[-10:]) / 10:.3f}, validation {found:.3f}")

# %% [markdown]
# ## What it saves
#
# ResNet-50, 64 images, counted on the device `meta`. One backward for the sum of all losses is right to the last digit,
# and saves nothing: the graph of every part stays alive until then.


# %%
def peak(size: int, one_backward: bool = False) -> float:
    """MiB that two updates on 64 images need."""
    with Card("meta") as card, torch.device("meta"):
        model = torchvision.models.resnet50()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            losses = []
            for _ in range(64 // size):
                loss = cross_entropy(model(torch.empty(size, 3, 224, 224)), torch.empty(size, dtype=torch.long))
                losses.append(loss) if one_backward else loss.backward()
            if one_backward:
                sum(losses).backward()
            optimizer.step()
            del loss, losses
            card.end_step()
    return card.peak.bytes / MIB


for size in (64, 16, 8):
    print(f"{size:2} at a time: {peak(size):5.0f} MiB")
print(f" 8 at a time, one backward: {peak(8, one_backward=True):.0f} MiB")
