"""Measure lab14: train with a log twice and once with a broken sensor; count what is read from the device, and when."""

import gc
import gzip
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from breakfix.contract import expect_tensors, function
from breakfix.probes.lineage import alive
from breakfix.probes.reads import Reads

SENSORS, WIDTH, KINDS = 24, 48, 6
STEPS, LEARNING_RATE, NORM = 60, 0.1, 1.0
EVERY = {"every 20": 20, "every 25": 25}  # the second one leaves ten steps over
BROKEN_AT = 33
ACTIVE = 3  # steps in a trace
READING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2", "aten::unique_dim")

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Inputs:
    """The initial parameters; the batches; and the same with a sensor that fails for one step."""

    parameters: dict[str, Tensor]
    batches: list[Batch]
    broken: list[Batch]


def reference() -> nn.Module:
    """The reference architecture."""
    return nn.Sequential(nn.Linear(SENSORS, WIDTH), nn.GELU(), nn.Linear(WIDTH, KINDS))


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(KINDS, SENSORS, generator=g)
    sizes = [4, 64, 7, 48, 5, 33] * (STEPS // 6)
    kinds = [torch.randint(KINDS, (size,), generator=g) for size in sizes]
    # small batches are of a harder kind of day, so that a mean over batches is another number than one over samples
    batches = [
        (centres[y] * (0.2 if len(y) < 8 else 1.0) + torch.randn(len(y), SENSORS, generator=g), y) for y in kinds
    ]
    broken = [(x.clone(), y) for x, y in batches]
    broken[BROKEN_AT - 1][0][0, int(torch.randint(SENSORS, (), generator=g))] = math.nan
    shapes = {name: p.shape for name, p in reference().named_parameters()}
    return Inputs({n: torch.randn(s, generator=g) / s[-1] ** 0.5 for n, s in shapes.items()}, batches, broken)


@dataclass
class Run:
    """What one call of train() did: the log, reads so far at each step, how many tensors were alive at some of them."""

    every: int
    log: list[tuple[str, float, int]] = field(default_factory=list)
    late: int = 0  # values written when another interval had begun
    reads_so_far: list[int] = field(default_factory=list)
    alive: dict[int, tuple[int, int]] = field(default_factory=dict)  # step: tensors, and those of them with a graph
    raised: str = ""

    def write(self, tag: str, value: float, step: int) -> None:
        """What train() logs by. A tensor is read here, as any writer does."""
        self.log.append((str(tag), float(value), int(step)))
        self.late += len(self.reads_so_far) > min(math.ceil(step / self.every) * self.every, STEPS)

    def batches(self, batches: list[Batch], reads: Reads) -> Iterator[Batch]:
        """The batches, and a look around before each."""
        last = STEPS // self.every * self.every
        looks = (
            2,
            self.every,
            last - self.every + 2,
            last,
        )  # early and late in the first and in the last whole interval
        for step, batch in enumerate(batches, start=1):
            self.reads_so_far.append(reads.count)
            if step in looks:
                gc.collect()
                tensors = sum(issubclass(type(it), Tensor) for it in gc.get_objects())
                self.alive[step] = tensors, len(alive())
            yield batch


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build(device) -> nn.Module")
    train = function(subject, "train(model, batches, every, write, traces) -> None")
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = False
    given = inputs(seed)
    evidence = {}
    for name, every in EVERY.items():
        evidence |= _trained(train, _model(build, given, device), given.batches, every, name, device)
    evidence |= _trained(train, _model(build, given, device), given.broken, 20, "broken sensor", device)
    return evidence | _of_torchmetrics()


def _model(build: Callable, given: Inputs, device: torch.device) -> nn.Module:
    model = build(device)
    shapes = {name: list(p.shape) for name, p in model.named_parameters()} if isinstance(model, nn.Module) else {}
    wanted = {name: list(p.shape) for name, p in given.parameters.items()}
    expect_tensors(shapes, wanted, "build", wanted="a model with the parameters of today, by name and shape")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(given.parameters[name])
    return model


def _trained(train: Callable, model: nn.Module, batches: list[Batch], every: int, name: str, device) -> dict:
    """The evidence of one call of train()."""
    run, reads = Run(every), Reads(device.type)
    with TemporaryDirectory() as folder:
        with reads:
            try:
                train(model, run.batches(batches, reads), every, run.write, Path(folder))
            except FloatingPointError as error:
                run.raised = type(error).__name__
        traces = [path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()]
    evidence = {"raised": run.raised, "steps_begun": len(run.reads_so_far), "reads": reads.count, "seen": str(reads)}
    evidence |= {"reads_so_far": np.array([*run.reads_so_far, reads.count]), "parameters": _flat(model)}
    evidence |= {"syncs": reads.syncs.total()} if device.type == "cuda" else {}
    evidence |= {"log.late": run.late} | _log(run.log) | _growth(run.alive) | _traced(traces)
    return {f"{name}.{key}": value for key, value in evidence.items()}


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _log(log: list[tuple[str, float, int]]) -> dict:
    """The steps and values that were logged under each tag."""
    tags = ("loss", "loss/mean", "accuracy", "grad_norm")
    found = {tag: [(step, value) for t, value, step in log if t == tag] for tag in tags}
    steps = {f"log.{tag}.steps": [step for step, _ in pairs] for tag, pairs in found.items()}
    values = {f"log.{tag}": np.array([v for _, v in pairs], dtype=np.float64) for tag, pairs in found.items()}
    return steps | values


def _growth(looks: dict[int, tuple[int, int]]) -> dict:
    """How many more tensors with a graph there are late in an interval, and tensors in a later interval."""
    if len(looks) < 4:
        return {"graphs_grow_by": math.nan, "tensors_grow_by": math.nan}
    (early, early_graphs), (_, late_graphs), (later, _), _ = (looks[step] for step in sorted(looks))
    return {"graphs_grow_by": late_graphs - early_graphs, "tensors_grow_by": later - early}


def _traced(files: list[bytes]) -> dict:
    """What the trace says, if there is exactly one that can be read; and the trace itself, compressed."""
    evidence = {"trace.files": len(files), "trace.steps": 0, "trace.updates": 0, "trace.reads": 0, "trace.events": 0}
    if len(files) != 1:
        return evidence
    try:
        text = gzip.decompress(files[0]) if files[0][:2] == b"\x1f\x8b" else files[0]
        events = [e for e in json.loads(text)["traceEvents"] if e.get("ph") == "X"]
        names = [e["name"] for e in events]
    except (ValueError, KeyError, TypeError, OSError, EOFError):
        return evidence | {"trace.files": -1}
    packed = gzip.compress(text, mtime=0)
    return {
        "trace.files": 1,
        "trace.events": len(events),
        "trace.steps": len({n for n in names if n.startswith("ProfilerStep#")}),
        "trace.updates": sum(n.startswith("Optimizer.step#") for n in names),
        "trace.reads": sum(n in READING for n in names),
        "trace.gz": np.frombuffer(packed if len(packed) < 1 << 20 else b"", dtype=np.uint8),
    }


def _of_torchmetrics() -> dict:
    """What a MeanMetric reads per update, and what it makes of 1 with weight 3 and 5 with weight 1: 2 is right."""
    with Reads() as reads:
        MeanMetric().update(torch.tensor(1.0))
    weighted = MeanMetric(nan_strategy="disable")
    weighted.update(torch.tensor(1.0), weight=3)
    weighted.update(torch.tensor(5.0), weight=1)
    return {"known.mean_metric": reads.count, "known.weighted_mean": weighted.compute()}
