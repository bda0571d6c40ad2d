# wrong: test_auroc_ranks_all_tokens test_ranks_report_what_one_would
# Ten thresholds in place of all scores: little memory, and another number.
"""Validate the address tagger: how well it names the parts of an address, token by token.

$ python metrics.py             two checkpoints, validated in several ways
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score
from torchmetrics.text import Perplexity

TAGS, LENGTH, VOCABULARY = 5, 12, 400  # neither, street, number, city, country
IGNORE = -100  # the tag of what follows the end of an address


class Validator:
    """Accuracy, macro F1, macro AUROC and perplexity of a tagger; kept from epoch to epoch."""

    def __init__(self, tags: int, device: torch.device) -> None:
        self.device = device
        by_tag = {
            "accuracy": MulticlassAccuracy(tags, average="micro", ignore_index=IGNORE),
            "f1": MulticlassF1Score(tags, average="macro", ignore_index=IGNORE),
            "auroc": MulticlassAUROC(tags, average="macro", ignore_index=IGNORE, thresholds=10),
        }
        self.by_tag = MetricCollection(by_tag).to(device)
        self.perplexity = Perplexity(ignore_index=IGNORE).to(device)

    def run(self, model: nn.Module, dataset: Dataset, batch_size: int) -> dict[str, float]:
        """The figures of `model` on `dataset`, of which each rank takes its share."""
        model.eval()
        self.by_tag.reset()
        self.perplexity.reset()
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        own = Subset(dataset, range(rank, len(dataset), ranks))  # unlike DistributedSampler's, none of them twice
        with torch.no_grad():
            for words, tags in DataLoader(own, batch_size):
                logits, tags = model(words.to(self.device)), tags.to(self.device)
                # AUROC takes a batch of logits for probabilities if all of them happen to lie between 0 and 1
                self.by_tag.update(logits.softmax(-1).flatten(0, 1), tags.flatten())
                self.perplexity.update(logits, tags)
        found = self.by_tag.compute() | {"perplexity": self.perplexity.compute()}  # of all ranks together
        return {name: value.item() for name, value in found.items()}


class Tagger(nn.Module):
    """An embedding and a convolution over it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.conv = nn.Embedding(VOCABULARY, 16), nn.Conv1d(16, TAGS, 3, padding=1)

    def forward(self, words: Tensor) -> Tensor:
        return self.conv(self.embedding(words).transpose(1, 2)).transpose(1, 2)


def addresses(count: int) -> TensorDataset:
    """`count` addresses; a fixed part of the vocabulary belongs to each tag."""
    generator = torch.Generator().manual_seed(5)
    words = torch.randint(VOCABULARY, (count, LENGTH), generator=generator)
    tags = (words.float() / VOCABULARY).pow(2).mul(TAGS).long()
    length = torch.randint(3, LENGTH + 1, (count, 1), generator=generator)
    return TensorDataset(words, tags.masked_fill(torch.arange(LENGTH) >= length, IGNORE))


def trained(steps: int) -> Tagger:
    """A checkpoint after so many steps."""
    torch.manual_seed(1)
    tagger, (words, tags) = Tagger(), addresses(100).tensors
    optimizer = torch.optim.Adam(tagger.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(tagger(words).flatten(0, 1), tags.flatten(), ignore_index=IGNORE).backward()
        optimizer.step()
    return tagger


def show(told: str, found: dict[str, float]) -> None:
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"{told:28}" + "".join(f"  {name} {value:.4f}" for name, value in found.items()), flush=True)


def validate(rank: int, meeting: str, ranks: int, batch_size: int) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    show(
        f"{ranks} ranks, batches of {batch_size}",
        Validator(TAGS, torch.device("cpu")).run(trained(20), addresses(101), batch_size),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32, 101])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device, dataset, better, worse = torch.device("cpu"), addresses(101), trained(20), trained(5)
    for batch_size in arguments.batch_sizes:
        show(f"batches of {batch_size}", Validator(TAGS, device).run(better, dataset, batch_size))
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(validate, (f"file://{folder}/meet", 2, 8), nprocs=2, start_method="fork")
    validator = Validator(TAGS, device)
    for told, model in ("epoch 0", better), ("epoch 1, a worse checkpoint", worse), ("epoch 2, as in epoch 0", better):
        show(told, validator.run(model, dataset, 8))


if __name__ == "__main__":
    main()
