# right: MeanMetric with the tokens as weights where a mean is right; F1 from a confusion matrix, perplexity at the end.
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
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAUROC, MulticlassConfusionMatrix

TAGS, LENGTH, VOCABULARY = 5, 12, 400  # neither, street, number, city, country
IGNORE = -100  # the tag of what follows the end of an address


class Validator:
    """Accuracy, macro F1, macro AUROC and perplexity of a tagger."""

    def __init__(self, tags: int, device: torch.device) -> None:
        self.device = device
        self.metrics = {
            "accuracy": MeanMetric(),
            "loss": MeanMetric(),
            "confusion": MulticlassConfusionMatrix(tags),
            "auroc": MulticlassAUROC(tags, average=None),
        }
        for metric in self.metrics.values():
            metric.to(device)

    def run(self, model: nn.Module, dataset: Dataset, batch_size: int) -> dict[str, float]:
        """The figures of `model` on `dataset`, of which each rank takes its share."""
        model.eval()
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        own = Subset(dataset, range(rank, len(dataset), ranks))
        for metric in self.metrics.values():
            metric.reset()
        with torch.no_grad():
            for words, tags in DataLoader(own, batch_size):
                logits, tags = model(words.to(self.device)).flatten(0, 1), tags.to(self.device).flatten()
                logits, tags = logits[tags != IGNORE], tags[tags != IGNORE]
                self.metrics["accuracy"].update((logits.argmax(-1) == tags).float().mean(), weight=len(tags))
                self.metrics["loss"].update(F.cross_entropy(logits, tags), weight=len(tags))
                self.metrics["confusion"].update(logits, tags)
                self.metrics["auroc"].update(logits.softmax(-1), tags)
        found = {name: metric.compute() for name, metric in self.metrics.items()}
        confusion = found["confusion"]
        return {
            "accuracy": found["accuracy"].item(),
            "f1": (2 * confusion.diag() / (confusion.sum(0) + confusion.sum(1))).mean().item(),
            "auroc": found["auroc"].mean().item(),
            "perplexity": found["loss"].exp().item(),
        }


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
