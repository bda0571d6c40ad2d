# wrong: test_every_message_is_needed
# All else right, find_unused_parameters kept "to be safe": a graph walk and one more message per step.
"""Train the event tagger on several cards, with gradient accumulation.

$ python train.py                                  two ranks on this machine, beside a single one
$ torchrun --nproc-per-node 2 train.py             the same ranks, started by torchrun
"""

import argparse
import contextlib
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

MicroBatch = tuple[Tensor, Tensor]  # inputs [n, 256], targets [n]


class Tagger(nn.Module):
    """A residual tower over 256 features of an event, with a score for each of 32 tags."""

    def __init__(self, width: int = 512, depth: int = 11):
        super().__init__()
        self.stem = nn.Linear(256, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(depth))
        self.head = nn.Linear(width, 32)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = hidden + F.gelu(block(hidden))
        return self.head(hidden)


def wrap(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    """The model with its gradients averaged over the ranks."""
    return DistributedDataParallel(model, process_group=group, find_unused_parameters=True)


def train_step(
    module: nn.Module, optimizer: Optimizer, micro_batches: list[MicroBatch], group: dist.ProcessGroup
) -> float:
    """One optimizer step on the mean over every sample of every rank; returns the mean loss of this rank's samples."""
    own = sum(len(targets) for _, targets in micro_batches)
    everyone = torch.tensor(float(own), device=micro_batches[0][0].device)
    dist.all_reduce(everyone, group=group)
    scale = dist.get_world_size(group) / everyone.item()  # the wrapper divides by the number of ranks

    optimizer.zero_grad()
    total = 0.0
    for i, (inputs, targets) in enumerate(micro_batches, 1):
        # the forward belongs inside: it is where the module decides whether this backward will send
        with module.no_sync() if i < len(micro_batches) else contextlib.nullcontext():
            loss = F.cross_entropy(module(inputs), targets, reduction="sum")
            (loss * scale).backward()
        total += loss.item()
    optimizer.step()
    return total / own


def train(steps: int, micro_batches: int, samples: int) -> float:
    """Train on random events in the group that is there; returns samples per second of all ranks together."""
    torch.manual_seed(0)
    group = dist.group.WORLD
    module = wrap(Tagger(), group)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    for step in range(steps + 3):
        if step == 3:  # the first steps allocate
            dist.barrier()
            started = time.perf_counter()
        batches = [(torch.randn(samples, 256), torch.randint(32, (samples,))) for _ in range(micro_batches)]
        train_step(module, optimizer, batches, group)
    seconds = (time.perf_counter() - started) / steps
    rate = dist.get_world_size() * micro_batches * samples / seconds
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} rank(s): {seconds * 1e3:6.0f} ms per step, {rate:6.0f} samples/s", flush=True)
    return rate


def run_rank(rank: int, world: int, port: int, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    train(arguments.steps, arguments.micro_batches, arguments.samples)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--samples", type=int, default=32, help="per micro-batch and rank")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        train(arguments.steps, arguments.micro_batches, arguments.samples)
        return dist.destroy_process_group()
    for world in (1, 2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.start_processes(run_rank, (world, port, arguments), nprocs=world, start_method="fork")


if __name__ == "__main__":
    main()
