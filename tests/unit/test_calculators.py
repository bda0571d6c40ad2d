"""The calculators: both languages meet the same vectors, and the formulas agree with what is counted."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from breakfix.probes import traffic
from breakfix.probes.loader import settle
from breakfix.probes.memory import Card
from breakfix.probes.pinned import HostPool, watch_pinned

ROOT = Path(__file__).parents[2]
if not find_spec("mkdocs"):
    pytest.skip("the site needs breakfix[site]", allow_module_level=True)
if not (ROOT / "hooks").is_dir():
    pytest.skip("the site's hooks are in a checkout only", allow_module_level=True)

sys.path.insert(0, str(ROOT / "hooks"))
import calculators  # noqa: E402

sys.path.pop(0)

VECTORS = json.loads(calculators.VECTORS.read_text("utf-8"))
RECORDED = json.loads(calculators.RECORDED.read_text("utf-8"))
SCRIPT = ROOT / "docs" / "assets" / "calculators.js"
NODE = shutil.which("node")
LINK = traffic.LINKS[1]


def test_there_are_vectors_of_every_formula():
    assert {v["formula"] for v in VECTORS} == set(calculators.FORMULAS)
    assert len(VECTORS) > 50


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["formula"])
def test_python_meets_the_vectors(vector):
    found = calculators.FORMULAS[vector["formula"]](**vector["input"])
    assert found == pytest.approx(vector["output"], rel=1e-12)


@pytest.mark.skipif(not NODE, reason="the JavaScript needs node; tests/browser holds it to the vectors as well")
def test_javascript_meets_the_vectors():
    script = (
        f"const f = require({json.dumps(str(SCRIPT))}); const v = JSON.parse(require('fs').readFileSync(0));"
        "console.log(JSON.stringify(v.map((v) => f[v.formula](v.input))));"
    )
    done = subprocess.run(
        [NODE, "-e", script], input=json.dumps(VECTORS), capture_output=True, text=True, timeout=60, check=True
    )
    for vector, found in zip(VECTORS, json.loads(done.stdout), strict=True):
        assert found == pytest.approx(vector["output"], rel=1e-12)


# ------------------------------------------------------------------------------------------- against what is counted


def build() -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(16) for layer in (nn.Linear(128, 128), nn.GELU())))


def counted_step(make, batch: int) -> tuple[int, int]:
    """Bytes at the peak of training, and numbers of the model."""
    with Card("cpu") as card:
        model = build()
        card.add(model)
        optimizer, x = make(model.parameters()), torch.randn(batch, 128)
        for _ in range(3):
            loss = model(x).square().mean()
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()
            card.end_step()
    return card.peak.bytes, sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("batch", [2, 2048])
@pytest.mark.parametrize("name", ["SGD with momentum", "AdamW", "AdamW, foreach=False"])
def test_memory_is_what_a_whole_step_takes(name, batch):
    make = {
        "SGD with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        "AdamW": torch.optim.AdamW,
        "AdamW, foreach=False": lambda p: torch.optim.AdamW(p, foreach=False),
    }[name]
    peak, numbers = counted_step(make, batch)
    few, many = (calculators.activations(build, (128,), size, "float32")["bytes"] for size in (1024, 4096))
    slope = (many - few) / 3072
    found = calculators.memory(
        numbers, **RECORDED["optimizers"][name], bytes_each=4, fixed=few - 1024 * slope, per_sample=slope,
        batch=batch, accumulates=False,
    )  # fmt: skip
    assert found["peak"] == pytest.approx(peak, rel=0.1)
    assert (found["backward"] > found["step"]) is (batch > 1000)


def test_the_recorded_optimizers_are_what_is_counted_now():
    assert calculators.count_optimizers() == RECORDED["optimizers"]


def test_a_recorded_model_is_what_is_counted_now():
    name, _, make, shape = calculators.zoo()[0]
    recorded = next(m for m in RECORDED["models"] if m["name"] == name)
    for precision in ("float32", "bfloat16"):
        found = calculators.activations(make, shape, 24, precision)
        told = recorded["activations"][precision]
        assert found["parameters"] == recorded["parameters"]
        assert found["bytes"] == pytest.approx(told["fixed"] + 24 * told["per_sample"], rel=0.01)


@pytest.mark.parametrize(("sizes", "worst"), [([65], True), ([20, 33, 50, 65, 100, 140], True), ([20, 140], False)])
def test_pinned_is_what_the_pool_holds(sizes, worst):
    pool, waiting = HostPool(), calculators.pinned(1, 1, 4, 2)["batches"]
    for size in sizes:  # as many of one size wait together as can, then as many of the next
        blocks = [pool.take(size << 20) for _ in range(waiting)]
        for block in blocks:
            pool.give_back(*block)
    found = calculators.pinned(min(sizes) << 20, max(sizes) << 20, 4, 2)
    assert (pool.held_peak == found["worst"]) is worst
    assert pool.held_peak <= found["worst"]
    if len(sizes) == 1:
        assert found["one_size"] == found["worst"]


@pytest.mark.skipif(sys.platform != "linux", reason="settle reads /proc")
@pytest.mark.parametrize(("workers", "prefetch"), [(0, None), (1, 3), (2, 2)])
def test_so_many_batches_are_pinned_at_once(workers, prefetch):
    with watch_pinned("cpu") as held:
        data = TensorDataset(torch.zeros(40, 1000))
        for (_batch,) in DataLoader(data, 2, num_workers=workers, prefetch_factor=prefetch, pin_memory=True):
            settle() if workers else None
    found = calculators.pinned(8000, 8000, workers, prefetch or 2)
    assert held.held_peak == found["one_size"]


@pytest.mark.parametrize(("size", "ranks", "backwards"), [(1000, 2, 1), (400_000_000, 8, 1), (60_000_000, 5, 4)])
def test_ddp_is_the_model_of_the_link(size, ranks, backwards):
    buckets = [min(size, calculators.FIRST_BUCKET)]
    while sum(buckets) < size:
        buckets.append(min(size - sum(buckets), calculators.BUCKET))
    sent = [traffic.Collective("all_reduce", b, "float32") for b in buckets] * backwards
    found = calculators.ddp(size, ranks, backwards, 0.1, LINK.latency_s, LINK.bytes_per_s)
    assert found["messages"] == len(sent)
    assert found["sent"] == pytest.approx(sum(traffic.sent_bytes(c, ranks) for c in sent))
    assert found["communication_s"] == pytest.approx(traffic.modelled_seconds(sent, ranks, LINK))
    assert found["at_best_s"] <= found["at_worst_s"]


def test_half_the_bytes_save_less_than_half_of_the_time():
    for link in traffic.LINKS:
        full, half = (calculators.ddp(size, 2, 1, 0.2, link.latency_s, link.bytes_per_s) for size in (4e8, 2e8))
        assert 1 <= full["at_worst_s"] / half["at_worst_s"] < 2
    assert full["at_worst_s"] / half["at_worst_s"] < 1.1  # on the fastest link hardly anything is saved
    assert full["at_best_s"] == half["at_best_s"]  # and nothing where messages hide behind computing


def test_every_number_that_the_page_asks_for_is_used():
    page = (ROOT / "docs" / "calculators.md").read_text("utf-8")
    script = SCRIPT.read_text("utf-8")
    names = [part.partition('"')[0] for part in page.split('name="')[1:]]
    assert len(names) > 15
    assert [name for name in names if f'"{name}"' not in script] == []
