"""The formulas of docs/calculators.md, and what they need: figures counted on real models.

    python hooks/calculators.py --record     counts the models and optimizers anew, into hooks/calculators.json
    python hooks/calculators.py --vectors    writes tests/fixtures/calculators.json: inputs, and what these formulas say

The page computes with docs/assets/calculators.js; a test holds both to the same vectors. Other tests hold the formulas
to what is counted: a whole training step, a pool of pinned memory, messages on a link.
"""

import argparse
import gc
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "hooks" / "calculators.json"
VECTORS = ROOT / "tests" / "fixtures" / "calculators.json"
MIB = 2**20
FIRST_BUCKET, BUCKET = 1 * MIB, 25 * MIB  # DDP's, by default
PRECISIONS = {"float32": (4, "float32"), "autocast": (4, "autocast"), "bfloat16": (2, "bfloat16")}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put what was recorded into the site, as a script: a page that is opened from a disk may not fetch a file."""
    from breakfix.probes.traffic import LINKS

    links = [{"name": k.name, "latency_s": k.latency_s, "bytes_per_s": k.bytes_per_s} for k in LINKS]
    data = json.dumps(json.loads(RECORDED.read_text("utf-8")) | {"links": links})
    files.append(File.generated(config, "assets/calculators-data.js", content=f"window.breakfixRecorded = {data};\n"))
    return files


# ------------------------------------------------------------------------------------------------------ the formulas


def memory(
    parameters: float, state: float, temporaries: float, bytes_each: float, fixed: float, per_sample: float,
    batch: float, accumulates: bool,
) -> dict[str, float]:  # fmt: skip
    """Bytes of a training step at its peak; `state` and `temporaries` are numbers per parameter.

    Either forward and backward decide, with activations (and gradients, where they are kept from an earlier backward),
    or the optimizer's step, with all gradients and its temporaries.
    """
    weights = parameters * bytes_each
    stays = weights * (1 + state)
    activations = fixed + per_sample * batch
    backward = stays + activations + (weights if accumulates else 0)
    step = stays + weights * (1 + temporaries)
    return {
        "weights": weights, "gradients": weights, "state": weights * state, "activations": activations,
        "backward": backward, "step": step, "peak": max(backward, step),
    }  # fmt: skip


def pinned(smallest: int, largest: int, workers: int, prefetch: int) -> dict[str, int]:
    """Bytes of pinned host memory that a loader holds for batches of one tensor, of one size or of sizes between two.

    Each tensor takes a block of the next power of two, and blocks are kept. At worst every size of block is needed by
    all batches at once, at one time or another.
    """
    waiting = workers * prefetch + 1 if workers else 2  # without workers: one in use, and the next
    low, high = (math.ceil(math.log2(size)) for size in (smallest, largest))
    return {
        "batches": waiting, "block": 2**high, "one_size": waiting * 2**high,
        "worst": waiting * sum(2**k for k in range(low, high + 1)),
    }  # fmt: skip


def ddp(
    gradient_bytes: float, ranks: int, backwards: int, compute_s: float, latency_s: float, bytes_per_s: float
) -> dict[str, float]:
    """Modelled seconds of a step of DDP: messages at full speed, and nothing or everything hidden behind computing.

    `backwards` is how many backward passes of a step send gradients: 1, or one per micro-batch without no_sync.
    """
    buckets = 1 + max(0, math.ceil((gradient_bytes - FIRST_BUCKET) / BUCKET))
    messages = backwards * buckets
    sent = backwards * gradient_bytes * 2 * (ranks - 1) / ranks
    seconds = messages * latency_s * math.ceil(math.log2(ranks)) + sent / bytes_per_s
    return {
        "messages": messages, "sent": sent, "communication_s": seconds, "at_best_s": max(compute_s, seconds),
        "at_worst_s": compute_s + seconds, "speed_up_at_worst": ranks * compute_s / (compute_s + seconds),
    }  # fmt: skip


FORMULAS: dict[str, Callable[..., dict[str, float]]] = {"memory": memory, "pinned": pinned, "ddp": ddp}


# -------------------------------------------------------------------------------------------------- what is recorded


def record() -> dict[str, Any]:
    """Count the models and the optimizers."""
    import torch

    models = [count_model(*entry) for entry in zoo()]
    return {"torch": torch.__version__.partition("+")[0], "optimizers": count_optimizers(), "models": models}


def zoo() -> list[tuple[str, str, Callable[[], Any], tuple[int, ...]]]:
    """Name, input, how to build it, and the shape of one sample."""
    import torchvision.models as vision

    def fcn():
        return vision.segmentation.fcn_resnet50(weights=None, weights_backbone=None, aux_loss=True)

    return [
        ("ResNet-18", "224 x 224", lambda: vision.resnet18(weights=None), (3, 224, 224)),
        ("ResNet-50", "224 x 224", lambda: vision.resnet50(weights=None), (3, 224, 224)),
        ("ViT-B/16", "224 x 224", lambda: vision.vit_b_16(weights=None), (3, 224, 224)),
        ("FCN ResNet-50", "512 x 512", fcn, (3, 512, 512)),
        ("Transformer encoder, 12 layers of 768", "512 tokens", transformer, (512, 768)),
    ]


def transformer():
    """The blocks of a model like GPT-2 or BERT, without embedding and head."""
    from torch import nn

    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)


def count_model(name: str, size: str, build: Callable[[], Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Parameters, and bytes of activations at the peak as `fixed + per_sample * batch`, by precision."""
    found = {"name": name, "input": size, "activations": {}}
    for precision in ("float32", "autocast", "bfloat16"):
        few, many = (16, 32)
        if precision == "autocast":  # which is really computed
            few, many = (1, 2) if shape[-1] > 224 else (4, 8)
        low, high = (activations(build, shape, batch, precision) for batch in (few, many))
        slope = (high["bytes"] - low["bytes"]) / (many - few)
        found["parameters"] = low["parameters"]
        found["activations"][precision] = {"fixed": round(low["bytes"] - slope * few), "per_sample": round(slope)}
    return found


def activations(build: Callable[[], Any], shape: tuple[int, ...], batch: int, precision: str) -> dict[str, int]:
    """What forward and backward need beside the parameters, counted.

    On the meta device, which computes nothing; autocast knows no such device, so there it is the CPU's autocast.
    """
    import torch

    from breakfix.probes.memory import Card

    device = "cpu" if precision == "autocast" else "meta"
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    with Card(device) as card, torch.device(device):
        model = build().to(dtype)
        card.add(model)
        x = torch.zeros(batch, *shape, dtype=dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"):
            out = model(x)
            outputs = list(out.values()) if isinstance(out, dict) else [out]
            loss = sum(o.float().square().mean() for o in outputs)
        del out, outputs
        loss.backward()
        kept = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
        numbers = sum(p.numel() for p in model.parameters())
    gc.collect()
    return {"bytes": card.peak.bytes - kept, "parameters": numbers}


def count_optimizers() -> dict[str, dict[str, float]]:
    """Per optimizer, as PyTorch would run it on a GPU: numbers of state and of temporaries for each parameter."""
    import torch

    kinds = {
        "SGD": lambda p: torch.optim.SGD(p, 0.1),
        "SGD with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        "AdamW": lambda p: torch.optim.AdamW(p),
        "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
        "AdamW, foreach=False": lambda p: torch.optim.AdamW(p, foreach=False),
        "Adafactor": lambda p: torch.optim.Adafactor(p),
    }
    return {name: count_optimizer(make) for name, make in kinds.items()}


def count_optimizer(make: Callable[[Any], Any], width: int = 256, layers: int = 32) -> dict[str, float]:
    """Counted on equal matrices, so many that one of them is little."""
    import torch

    from breakfix.probes.memory import Card

    with Card("cpu") as card:
        weights = [torch.nn.Parameter(torch.zeros(width, width)) for _ in range(layers)]
        optimizer = make(weights)
        for _ in range(2):
            for w in weights:
                w.grad = torch.ones(width, width)
            optimizer.step()
            card.end_step()
    size = sum(w.nbytes for w in weights)
    state = sum(
        t.nbytes for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.numel() > 1
    )
    temporaries = (card.peak.bytes - 2 * size - state) / size
    return {"state": round(state / size, 3), "temporaries": round(max(0.0, temporaries), 2)}


# -------------------------------------------------------------------------------------------------------- the vectors


def inputs() -> dict[str, list[dict[str, Any]]]:
    """What the vectors ask: ordinary cases, and the borders of each formula."""
    found = {"memory": [], "pinned": [], "ddp": []}
    recorded = json.loads(RECORDED.read_text("utf-8"))
    for model in recorded["models"]:
        for size, key in PRECISIONS.values():
            kind = recorded["optimizers"]["AdamW" if size == 4 else "SGD with momentum"]
            found["memory"] += [
                {"parameters": model["parameters"], "bytes_each": size, "batch": batch, "accumulates": batch > 8}
                | kind | model["activations"][key]
                for batch in (1, 32)
            ]  # fmt: skip
    for smallest, largest in ((1, 1), (65 * MIB, 65 * MIB), (64 * MIB, 64 * MIB), (20 * MIB, 140 * MIB), (3, 1025)):
        found["pinned"] += [
            {"smallest": smallest, "largest": largest, "workers": w, "prefetch": p} for w, p in ((0, 2), (4, 2), (1, 1))
        ]
    for size in (1000, MIB, MIB + 1, 400_000_000):
        link = {"compute_s": 0.2, "latency_s": 50e-6, "bytes_per_s": 1.25e9}
        found["ddp"] += [
            {"gradient_bytes": size, "ranks": n, "backwards": b} | link for n, b in ((2, 1), (5, 4), (1024, 1))
        ]
    return found


def vectors() -> list[dict[str, Any]]:
    """Every input with what the formula makes of it."""
    return [
        {"formula": name, "input": given, "output": FORMULAS[name](**given)}
        for name, cases in inputs().items()
        for given in cases
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--vectors", action="store_true")
    arguments = parser.parse_args()
    if arguments.record:
        RECORDED.write_text(json.dumps(record(), indent=1) + "\n", "utf-8")
    if arguments.vectors:
        VECTORS.write_text(json.dumps(vectors(), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
