# right: gradients summed by hand and divided by the recordings of all ranks; nothing overlaps with backward.
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


def average(tensors: list[Tensor]) -> None:
    """Put the mean over all ranks in place of each of them; one message for all."""
    flat = torch.cat([t.ravel() for t in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


def evaluate(model: nn.Module, dataset: Dataset, batch: int) -> float:
    """The mean loss over all recordings of `dataset`; each rank looks at some of them."""
    model.eval()
    device = next(model.parameters()).device
    own = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    total = torch.zeros((), device=device)
    with torch.no_grad():
        for vibration, condition in DataLoader(own, batch):
            total += F.cross_entropy(model(vibration.to(device)), condition.to(device), reduction="sum")
    dist.all_reduce(total)
    return total.item() / len(dataset)


def save(checkpoint: dict, path: Path) -> None:
    """Write under another name first, so that whoever reads `path` finds a whole file."""
    torch.save(checkpoint, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def train(
    model: nn.Module, optimizer: Optimizer, training: Dataset, validation: Dataset, epochs: int, batch: int, out: Path
) -> list[dict[str, float]]:
    """Train `model` on all ranks together; the losses of every epoch, and after each a checkpoint."""
    device = next(model.parameters()).device
    rank, world = dist.get_rank(), dist.get_world_size()
    statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    history = []
    for epoch in range(epochs):
        model.train()
        order = torch.randperm(len(training), generator=torch.Generator().manual_seed(epoch)).tolist()
        steps = [order[at : at + batch * world] for at in range(0, len(order), batch * world)]
        batches = [step[rank::world] for step in steps if len(step) >= world]
        loader = DataLoader(training, batch_sampler=batches)
        total = torch.zeros(2, device=device)  # loss, recordings
        for vibration, condition in loader:
            loss = F.cross_entropy(model(vibration.to(device)), condition.to(device), reduction="sum")
            optimizer.zero_grad()
            loss.backward()
            count = torch.tensor(float(len(condition)), device=device)
            average([p.grad for p in model.parameters()] + [count])
            for parameter in model.parameters():
                parameter.grad /= count  # both are means over the ranks
            optimizer.step()
            average(statistics)  # before the next forward takes rank 0's for everybody's
            total[0] += loss.detach()
            total[1] += len(condition)
        dist.all_reduce(total)
        entry = {"loss": (total[0] / total[1]).item(), "validation_loss": evaluate(model, validation, batch)}
        if dist.get_rank() == 0:
            save({"epoch": epoch, "model": model.state_dict()}, out / "last.pt")
        history.append(entry)
        told = "  ".join(f"{name} {value:.4f}" for name, value in entry.items())
        print(f"rank {dist.get_rank()}  epoch {epoch}  {told}", flush=True)
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
