"""Pre-train the event encoder on several cards.

$ python train.py                                  two ranks on this machine, then four
$ torchrun --nproc-per-node 2 train.py             the same ranks, started by torchrun
"""

import gc
import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


class Encoder(nn.Module):
    """A residual tower over an event's features; nearly all its parameters are in `blocks`, equal parts each."""

    def __init__(self, features: int = 64, width: int = 512, depth: int = 8, classes: int = 32):
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.blocks = nn.ModuleList(self.block(width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def block(self, width: int) -> nn.Module:
        return nn.Sequential(nn.RMSNorm(width), nn.Linear(width, width, bias=False), nn.GELU())

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)


class Trainer:
    """Trains one model, of which every rank keeps a share: AdamW, and gradients clipped by their norm."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, lr: float, max_norm: float):
        self.model, self.group, self.max_norm = model, group, max_norm
        mesh = DeviceMesh.from_group(group, next(model.parameters()).device.type)
        for block in model.blocks:  # each is gathered when its turn comes, and let go of after it
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)  # what is in no block
        # after sharding: before it there were other parameters
        self.optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)

    def step(self, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """One update; returns the mean loss of this rank's samples and the gradient's norm before clipping."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(inputs), targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        return loss.item(), norm.full_tensor().item()

    def weights(self) -> dict[str, Tensor]:
        """The whole parameters, by their names in the model, on every rank."""
        return {name: shard.full_tensor() for name, shard in self.model.state_dict().items()}

    def save(self, folder: Path) -> None:
        """Write all that `load` needs to go on as though nothing had happened; called on every rank."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        checkpoint.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder, process_group=self.group)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote, with however many ranks there were; called on every rank."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        checkpoint.load(state, checkpoint_id=folder, process_group=self.group)  # into these shards
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def megabytes_in_tensors() -> float:
    """What all tensors of this process hold, each storage once."""
    tensors = [t for t in gc.get_objects() if type(t) in (Tensor, nn.Parameter)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values()) / 1e6


def train(steps: int, samples: int) -> None:
    """Train on random events in the group that is there, `samples` of them per step and rank."""
    torch.manual_seed(0)
    trainer = Trainer(Encoder(), dist.group.WORLD, lr=1e-3, max_norm=1.0)
    torch.manual_seed(dist.get_rank())
    for _ in range(steps):
        loss, norm = trainer.step(torch.randn(samples, 64), torch.randint(32, (samples,)))
    if dist.get_rank() == 0:
        held, world = megabytes_in_tensors(), dist.get_world_size()
        print(f"{world} rank(s): loss {loss:.3f}, gradient norm {norm:.2f}, {held:.1f} MB on each rank", flush=True)


def run_rank(rank: int, world: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    train(steps=5, samples=16)
    dist.destroy_process_group()


def main() -> None:
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        train(steps=5, samples=16)
        return dist.destroy_process_group()
    for world in (2, 4):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.start_processes(run_rank, (world, port), nprocs=world, start_method="fork")


if __name__ == "__main__":
    main()
