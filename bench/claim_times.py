"""Claims about time, as ratios of two ways that run in turn. Nothing here is graded: times depend on the machine.

    OMP_NUM_THREADS=1 python bench/claim_times.py

claims/ledger.jsonl names these functions as evidence. A ratio above 1 means that the first way takes longer.
"""

import statistics
import time
from collections.abc import Callable

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROUNDS = 30


def ratio(first: Callable[[], object], second: Callable[[], object], rounds: int, repeat: int = 1) -> float:
    """Median CPU time of the first over that of the second, each measured in turn."""
    taken = ([], [])
    for _ in range(rounds + 1):
        for way, times in zip((first, second), taken, strict=True):
            start = time.process_time()
            for _ in range(repeat):
                way()
            times.append(time.process_time() - start)
    return statistics.median(taken[0][1:]) / max(statistics.median(taken[1][1:]), 1e-9)  # the first warms up


def without(way: Callable[[], object]) -> Callable[[], object]:
    """The same under no_grad."""
    return torch.no_grad()(way)


def graph_of_small_layers(rounds: int = ROUNDS) -> float:
    """Twenty small layers with a graph, against without."""
    model = nn.Sequential(*(layer for _ in range(20) for layer in (nn.Linear(64, 64), nn.ReLU())))
    x = torch.randn(16, 64)
    return ratio(lambda: model(x), without(lambda: model(x)), rounds, 20)


def graph_of_resnet18(rounds: int = ROUNDS) -> float:
    """A ResNet-18 with a graph, against without."""
    model, x = torchvision.models.resnet18(weights=None).eval(), torch.randn(1, 3, 64, 64)
    return ratio(lambda: model(x), without(lambda: model(x)), rounds)


def no_grad_round_one_operator(rounds: int = ROUNDS) -> float:
    """One tiny operator under a no_grad of its own, against as it is."""
    x = torch.ones(1)

    def wrapped():
        with torch.no_grad():
            return x + 1

    return ratio(wrapped, lambda: x + 1, rounds, 2000)


def empty_and_fill(rounds: int = ROUNDS) -> float:
    """torch.empty and a fill, against torch.zeros alone."""
    size = 1 << 22
    return ratio(lambda: torch.empty(size).fill_(0), lambda: torch.zeros(size), rounds)


def zeros_and_fill(rounds: int = ROUNDS) -> float:
    """torch.zeros and a fill, against torch.empty and a fill."""
    size = 1 << 22
    return ratio(lambda: torch.zeros(size).fill_(1), lambda: torch.empty(size).fill_(1), rounds)


def first_call_of_a_compiled_function(rounds: int = 3) -> float:
    """Capture of a function, without a compiler, against a call afterwards."""
    net, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.randn(8, 64)
    found = []
    for _ in range(rounds):
        torch._dynamo.reset()
        compiled = torch.compile(net, backend="eager")
        start = time.process_time()
        compiled(x)
        middle = time.process_time()
        for _ in range(50):
            compiled(x)
        found.append((middle - start) / max((time.process_time() - middle) / 50, 1e-9))
    return statistics.median(found)


def eager_against_a_trace(rounds: int = ROUNDS) -> float:
    """A ResNet-18 in eager mode, against its trace."""
    model, x = torchvision.models.resnet18(weights=None).eval(), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        traced = torch.jit.trace(model, x)
        return ratio(lambda: model(x), lambda: traced(x), rounds)


def eager_against_onnxruntime(rounds: int = ROUNDS) -> float:
    """A ResNet-18 in eager mode, against its ONNX file in onnxruntime with as many threads."""
    import io

    import onnxruntime

    model, x, file = torchvision.models.resnet18(weights=None).eval(), torch.randn(1, 3, 64, 64), io.BytesIO()
    torch.onnx.export(model, (x,), file, dynamo=False, input_names=["x"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    runtime = onnxruntime.InferenceSession(file.getvalue(), options)
    with torch.no_grad():
        return ratio(lambda: model(x), lambda: runtime.run(None, {"x": x.numpy()}), rounds)


def linear_against_quantized(rounds: int = ROUNDS) -> float:
    """Linear layers in float32, against dynamically quantized ones."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
    small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    x = torch.randn(16, 1024)
    with torch.no_grad():
        return ratio(lambda: model(x), lambda: small(x), rounds)


def rows_one_by_one(rounds: int = ROUNDS) -> float:
    """A hundred rows in a hundred forwards, against all in one."""
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)), torch.randn(100, 64)
    with torch.no_grad():
        return ratio(lambda: [model(row) for row in x.split(1)], lambda: model(x), rounds)


def masked_against_dense(rounds: int = ROUNDS) -> float:
    """A layer of which 90 % are zeros, against a dense one."""
    dense, x = nn.Linear(1024, 1024), torch.randn(64, 1024)
    masked = nn.Linear(1024, 1024)
    with torch.no_grad():
        masked.weight *= torch.rand_like(masked.weight) > 0.9
        return ratio(lambda: masked(x), lambda: dense(x), rounds)


class Slow(Dataset):
    """Samples that a disk brings: time passes and no processor works."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.01)
        return index


def processor_share_while_a_disk_is_read(rounds: int = 1) -> float:
    """CPU time of the trainer over wall time, while it waits for workers that wait for a disk."""
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        list(DataLoader(Slow(), 8, num_workers=2))
    return (time.process_time() - cpu) / (time.perf_counter() - start)


TIMES = [
    graph_of_small_layers, graph_of_resnet18, no_grad_round_one_operator, empty_and_fill, zeros_and_fill,
    first_call_of_a_compiled_function, eager_against_a_trace, eager_against_onnxruntime, linear_against_quantized,
    rows_one_by_one, masked_against_dense, processor_share_while_a_disk_is_read,
]  # fmt: skip


def main() -> None:
    for way in TIMES:
        print(f"{way():8.2f}  {way.__doc__}", flush=True)


if __name__ == "__main__":
    main()
