# wrong: test_all_ranks_call_the_same test_each_recording_once_an_epoch test_each_epoch_has_an_order_of_its_own test_trains_like_one_process test_statistics_are_of_all_ranks test_one_rank_writes test_all_ranks_report_the_same
# drop_last in each rank's own loader: shares of 20 and 19 are five whole batches and four.
"""Train the bearing classifier on several cards, one process each.

$ python train.py                                  two ranks on this machine
$ torchrun --nproc-per-node 2 train.py             the same ranks, started by torchrun
"""

import argparse
import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

CONDITIONS, EPOCHS = 4, 5  # sound, inner race, outer race, cage


class Bearings(nn.Module):
    """Names the condition of a bearing from 64 samples of its vibration."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, 16, 9), nn.BatchNorm1d(16)
        self.head = nn.Linear(16, CONDITIONS)

    def forward(self, vibration: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(vibration))).mean(-1))


def load(dataset: Dataset, batch: int, epoch: int) -> DataLoader:
    """This rank's share of the recordings, in random order; the rest that does not fill a batch of all ranks is left."""
    world, rank = dist.get_world_size(), dist.get_rank()
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(epoch)).tolist()
    whole = len(dataset)
    own = order[:whole][rank::world]
    return DataLoader(Subset(dataset, own), batch, drop_last=True)


def evaluate(model: nn.Module, dataset: Dataset, batch: int) -> float:
    model.eval()
    device = next(model.parameters()).device
    own = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    total = torch.zeros((), device=device)
    with torch.no_grad():
        for vibration, condition in DataLoader(own, batch):
            total += F.cross_entropy(model(vibration.to(device)), condition.to(device), reduction="sum")
    dist.all_reduce(total)
    return total.item() / len(dataset)


def same_statistics(model: nn.Module) -> None:
    """running statistics: the mean over the ranks."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()


def train(
    model: nn.Module, optimizer: Optimizer, training: Dataset, validation: Dataset, epochs: int, batch: int, out: Path
) -> list[dict[str, float]]:
    device = next(model.parameters()).device
    module = DistributedDataParallel(model, broadcast_buffers=False)
    history = []
    for epoch in range(epochs):
        module.train()
        sums = torch.zeros(2, device=device)
        for vibration, condition in load(training, batch, epoch):
            loss = F.cross_entropy(module(vibration.to(device)), condition.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.stack([loss.detach() * len(condition), torch.tensor(float(len(condition)), device=device)])
        same_statistics(model)
        dist.all_reduce(sums)
        entry = {"loss": (sums[0] / sums[1]).item(), "validation_loss": evaluate(model, validation, batch)}
        if dist.get_rank() == 0:
            torch.save({"epoch": epoch, "model": model.state_dict()}, out / "last.pt")
        history.append(entry)
    return history


def recordings(count: int, seed: int) -> TensorDataset:
    """`count` recordings, half of them from each of two test benches, one bench after the other."""
    generator = torch.Generator().manual_seed(seed)
    condition = torch.randint(CONDITIONS, (count,), generator=generator)
    bench = (torch.arange(count) >= count // 2).float().unsqueeze(1)
    turns = torch.arange(64) * (0.3 + 0.4 * condition).unsqueeze(1) + 6.3 * torch.rand(count, 1, generator=generator)
    vibration = (turns.sin() + torch.randn(count, 64, generator=generator)) * (1 + bench) + 3 * bench
    return TensorDataset(vibration.unsqueeze(1), condition)


def run(rank: int, arguments: argparse.Namespace, meeting: str, folder: Path) -> None:
    torch.set_num_threads(1)
    world = arguments.ranks if rank >= 0 else -1
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=timedelta(seconds=2))
    torch.manual_seed(0)
    model = Bearings()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training = recordings(arguments.recordings, seed=1)
    train(model, optimizer, training, recordings(200, seed=2), EPOCHS, arguments.batch_size, folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--recordings", type=int, default=401)
    parser.add_argument("--batch-size", type=int, default=20, help="of each rank")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if "RANK" in os.environ:
            return run(-1, arguments, "env://", Path(place))
        mp.start_processes(run, (arguments, f"file://{place}/meet", Path(place)), arguments.ranks, start_method="fork")


if __name__ == "__main__":
    main()
