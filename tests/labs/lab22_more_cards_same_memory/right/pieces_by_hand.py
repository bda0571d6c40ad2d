# right: By hand: of every gradient and its state each rank keeps an equal piece. Exact shares; every message is waited for.
"""Pre-train the event encoder on several cards.

$ python train.py                                  two ranks on this machine, then four
$ torchrun --nproc-per-node 2 train.py             the same ranks, started by torchrun
"""

import gc
import os
import socket
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
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
    """Trains one model on all ranks of a group; of gradients and AdamW's state every rank keeps an equal piece."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, lr: float, max_norm: float):
        self.model, self.group, self.max_norm = model, group, max_norm
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.pieces = {name: nn.Parameter(self.own(p.detach())) for name, p in model.named_parameters()}
        self.optimizer = torch.optim.AdamW(list(self.pieces.items()), lr, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(partial(self.reduce, self.pieces[name]))

    def reduce(self, piece: Tensor, parameter: Tensor) -> None:
        """Called in backward as soon as a gradient is there: what is not this rank's goes at once."""
        piece.grad = torch.empty_like(piece)
        dist.reduce_scatter(piece.grad, list(self.padded(parameter.grad).chunk(self.world)), group=self.group)
        piece.grad /= self.world
        parameter.grad = None

    def padded(self, whole: Tensor) -> Tensor:
        """Its values in a row, with zeros up to a multiple of the number of ranks."""
        return F.pad(whole.flatten(), (0, -whole.numel() % self.world))

    def own(self, whole: Tensor) -> Tensor:
        return self.padded(whole).chunk(self.world)[self.rank].clone()

    def whole(self, piece: Tensor, like: Tensor) -> Tensor:
        """The pieces of all ranks, without the zeros, in the shape of `like`."""
        whole = piece.new_empty(self.world * len(piece))
        dist.all_gather(list(whole.chunk(self.world)), piece.detach(), group=self.group)
        return whole[: like.numel()].view_as(like)

    def step(self, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
        """One update; returns the mean loss of this rank's samples and the gradient's norm before clipping."""
        loss = F.cross_entropy(self.model(inputs), targets)
        loss.backward()
        square = sum(piece.grad.square().sum() for piece in self.pieces.values())
        dist.all_reduce(square, group=self.group)
        norm = square.sqrt()
        nn.utils.clip_grads_with_norm_(self.pieces.values(), self.max_norm, norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for name, parameter in self.model.named_parameters():
            parameter.data.copy_(self.whole(self.pieces[name], parameter))
        return loss.item(), norm.item()

    def weights(self) -> dict[str, Tensor]:
        """The whole parameters, by their names in the model, on every rank."""
        return dict(self.model.state_dict())

    def save(self, folder: Path) -> None:
        """Write all that `load` needs to go on as though nothing had happened; called on every rank."""
        saved = {"model": self.model.state_dict(), "state": {}}
        for name, parameter in self.model.named_parameters():
            state = self.optimizer.state[self.pieces[name]]
            moments = {key: self.whole(state[key], parameter) for key in ("exp_avg", "exp_avg_sq")}
            saved["state"][name] = moments | {"step": state["step"]}
        if self.rank == 0:
            torch.save(saved, folder / "checkpoint.pt")
        dist.barrier(self.group)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote, with however many ranks there were; called on every rank."""
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        self.model.load_state_dict(saved["model"])
        for name, piece in self.pieces.items():
            piece.data.copy_(self.own(saved["model"][name]))
            moments = {key: self.own(saved["state"][name][key]) for key in ("exp_avg", "exp_avg_sq")}
            self.optimizer.state[piece] = moments | {"step": saved["state"][name]["step"]}


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
