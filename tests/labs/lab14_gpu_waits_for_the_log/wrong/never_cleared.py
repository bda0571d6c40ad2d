# wrong: test_nothing_is_kept
# All losses of the run are kept, and those since the last report written: the list is as long as the run.
"""Train the belt classifier: what lies on the belt, by the readings of 24 sensors, with a log and a trace."""

import argparse
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, schedule
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification import MulticlassAccuracy

SENSORS, KINDS = 24, 6
LOG = logging.getLogger("belt")
Write = Callable[[str, float, int], None]  # a tag, a value, a step; as SummaryWriter.add_scalar takes them


def build(device: torch.device) -> nn.Module:
    """Readings [B, SENSORS] to logits [B, KINDS]."""
    return nn.Sequential(nn.Linear(SENSORS, 48), nn.GELU(), nn.Linear(48, KINDS)).to(device)


def train(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], every: int, write: Write, traces: Path) -> None:
    """One update per batch. Logs each loss, the metrics every `every` steps, and leaves a trace of three steps."""
    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    metrics = {
        "loss/mean": MeanMetric(nan_strategy="disable").to(device),
        "accuracy": MulticlassAccuracy(KINDS, average="micro", validate_args=False).to(device),
        "grad_norm": MaxMetric(nan_strategy="disable").to(device),
    }
    losses: list[Tensor] = []  # since the last report, on the device
    step = 0
    with recorder(device, traces) as profiler:
        for step, (x, y) in enumerate(batches, start=1):
            x, y = x.to(device), y.to(device)
            logits = model(x)
            each = F.cross_entropy(logits, y, reduction="none")
            loss = each.mean()
            losses.append(loss.detach())
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            metrics["loss/mean"].update(each.detach())  # not weight=len(y): with "disable" torchmetrics 1.9.0 drops it
            metrics["accuracy"].update(logits.argmax(dim=1), y)
            metrics["grad_norm"].update(norm)
            profiler.step()
            if step % every == 0:
                report(metrics, losses[-every:], write, step)
    if step % every:
        report(metrics, losses[-(step % every) :], write, step)


def report(metrics: dict, losses: list[Tensor], write: Write, step: int) -> None:
    """Write the losses since the last report and what the metrics have gathered, and begin anew: two reads.

    Raises FloatingPointError if a loss is not finite.
    """
    values = torch.stack(losses).tolist()
    since = step - len(values) + 1
    for at, value in enumerate(values, start=since):
        write("loss", value, at)
        LOG.debug("step %d: loss %.4f", at, value)
    for at, value in enumerate(values, start=since):
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss of step {at} is {value}")
    gathered = torch.stack([metric.compute() for metric in metrics.values()]).tolist()
    for tag, value in zip(metrics, gathered, strict=True):
        write(tag, value, step)
        metrics[tag].reset()


def recorder(device: torch.device, traces: Path) -> profile:
    """A profiler that lets ten steps pass, records three and writes them into the folder `traces`, for Perfetto."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    return profile(
        activities=activities,
        schedule=schedule(wait=8, warmup=2, active=3, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(traces / f"step{done.step_num}.json")),
    )


def belt(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Made-up readings [B, SENSORS] and kinds [B], B between 4 and 64."""
    generator = torch.Generator().manual_seed(11)
    centres = torch.randn(KINDS, SENSORS, generator=generator)
    for _ in range(steps):
        y = torch.randint(KINDS, (int(torch.randint(4, 65, (), generator=generator)),), generator=generator)
        yield centres[y] + 1.5 * torch.randn(len(y), SENSORS, generator=generator), y


def writer(folder: Path) -> Write:
    """TensorBoard's, where it is installed; else lines of JSON."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        file = (folder / "log.jsonl").open("w", encoding="utf-8")
        return lambda tag, value, step: print(json.dumps([step, tag, value]), file=file, flush=True)
    return SummaryWriter(str(folder)).add_scalar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, default=Path("run"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, write = build(torch.device(arguments.device)), writer(arguments.folder)
    start = time.perf_counter()
    train(model, belt(arguments.steps), 20, write, arguments.folder)
    print(f"{arguments.steps} steps, {1e3 * (time.perf_counter() - start) / arguments.steps:.2f} ms each")
    print(f"in {arguments.folder}: {', '.join(sorted(path.name for path in arguments.folder.iterdir()))}")


if __name__ == "__main__":
    main()
