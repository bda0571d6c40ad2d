"""What `breakfix examine` finds: in the corpus of its tests, in the labs' own broken files; and what it costs.

    OMP_NUM_THREADS=1 python bench/examine.py            the tables of docs/examine.md
    OMP_NUM_THREADS=1 python bench/examine.py FILES      the findings in other scripts, whose first line names one

Scripts run one after another in forks of one process, as in the tests.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from breakfix.examine import launch, report

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "fixtures" / "examine"
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
FIRST = "written before the rules"
UNSEEN = {  # why a fault does not show to probes that cost little
    "lab01": "on a CPU nothing is out of memory; on CUDA the peak is told",
    "lab03": "memory is spent in the right places, only too much of it; on CUDA the peak is told",
    "lab05": "pinned memory is there on CUDA only",
    "lab06": "a mean of means looks like any other loss",
    "lab10": "writes through .data leave no trace that autograd keeps",
    "lab15": "how a metric is added up is arithmetic",
    "lab17": "random numbers repeat inside the workers of the loader",
    "lab18": "on a CPU everything is on one device",
    "lab19": "a race needs streams",
    "lab21": "the ranks are aborted before they can say what they called",
    "lab22": "every rank holds what it was told to hold",
    "lab24": "it trains nothing; an export is judged by its answers",
    "lab25": "it trains nothing: a gate that lets too much through",
    "lab27": "its training is healthy; answers depend on neighbours after it",
    "lab28": "weights that are zero cost as much as others, in silence",
    "lab29": "its training is healthy; preprocessing differs after it",
    "lab30": "what a checkpoint leaves out is missed only when it is loaded",
    "lab32": "it compares releases of PyTorch",
    "lab33": "it compares environments",
    "lab34": "it raises IndexError on a CPU, which names the fault itself",
    "lab35": "it trains nothing, and a mask of the wrong meaning is a mask",
    "lab36": "it trains nothing; fragmentation is the allocator's",
}
LOOP = """
import time, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
kind, steps = {kind!r}, {steps}
if kind == "MLP":
    net, x = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)), torch.randn(64, 32)
elif kind == "CNN":
    conv = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.AdaptiveAvgPool2d(1)]
    net, x = nn.Sequential(*conv, nn.Flatten(), nn.Linear(32, 10)), torch.randn(8, 3, 32, 32)
else:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    net = nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.Linear(64 * 32, 10))
    x = torch.randn(8, 32, 64)
adam, y = torch.optim.AdamW(net.parameters()), torch.randint(10, (len(x),))
start = time.process_time()
for _ in range(steps):
    adam.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    adam.step()
print(time.process_time() - start)
"""


def examined(files: list[Path]) -> list[tuple[Path, report.Report]]:
    """The report on each script."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as here:
        work = [sys.executable, str(FIXTURES / "run_many.py"), *map(str, files)]
        environment = launch.hooked(ENVIRONMENT, folder)
        done = subprocess.run(work, env=environment, cwd=here, stdout=subprocess.PIPE, text=True, check=True)
        records = [json.loads(path.read_text("utf-8")) for path in Path(folder).glob("*.json")]
    found = []
    for line in map(json.loads, done.stdout.splitlines()):
        own = [r for r in records if {r["pid"], r["parent"]} & set(line["pids"])]
        found.append((Path(line["file"]), report.report_of(launch.Run(line["code"], 1.0, own), [line["file"]])))
    return found


def corpus() -> None:
    print("| scripts | right finding first | among the first three | certain or likely finding |\n|---|---:|---:|---:|")
    for folder in ("broken", "healthy"):
        every = examined(sorted((FIXTURES / folder).glob("*.py")))
        for told, first in (("before the rules", True), ("after", False)):
            some = [pair for pair in every if (FIRST in pair[0].read_text("utf-8")) == first]
            places = [_place(path, found) for path, found in some]
            right = f"{sum(p == 0 for p in places)} | {sum(p < 3 for p in places)}" if folder == "broken" else "- | -"
            print(f"| {len(some)} {folder}, written {told} | {right} | {sum(bool(report.worth(f)) for _, f in some)} |")


def labs() -> None:
    import tomllib

    files = {}
    for path in sorted((ROOT / "labs").glob("lab*")):
        about = tomllib.loads((path / "lab.toml").read_text("utf-8"))
        if not {"onnx", "serve", "quantize", "cuda"} & set(about.get("needs", [])):
            files[path / about["editable"]] = path.name[:5]
    print("\n| lab | leads to | by | why not |\n|---|---|---|---|")
    for path, found in examined(list(files)):
        lab, first = files[path], found.findings[0] if found.findings else None
        right = first is not None and first.lab == lab
        by = f"{first.finding.name} ({first.finding.rank})" if first else "-"
        why = "" if right else UNSEEN.get(lab, "not looked into")
        print(f"| {lab} | {first.lab if first else '-'} | {by} | {why} |")


def cost() -> None:
    print("\n| step | bare, ms | examined, ms | ratio |\n|---|---:|---:|---:|")
    for kind, steps in (("MLP", 4000), ("CNN", 600), ("transformer", 250)):
        taken = {True: [], False: []}
        for hooked in (False, True) * 3:
            with tempfile.TemporaryDirectory() as folder:
                environment = launch.hooked(ENVIRONMENT, folder) if hooked else ENVIRONMENT
                script = [sys.executable, "-c", LOOP.format(kind=kind, steps=steps)]
                done = subprocess.run(script, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                taken[hooked].append(1e3 * float(done.stdout) / steps)
        bare, examined_ms = min(taken[False]), min(taken[True])
        print(f"| {kind}, {steps} steps | {bare:.2f} | {examined_ms:.2f} | {examined_ms / bare:.2f} |")


def others(files: list[str]) -> None:
    for path, found in examined([Path(file).absolute() for file in files]):
        told = ", ".join(f"{t.finding.name} ({t.finding.rank})" for t in found.findings)
        print(f"{path.name:24} wanted {_wanted(path):26} found {told or '-'}")


def _wanted(path: Path) -> str:
    return path.read_text("utf-8").partition("\n")[0].partition("wanted: ")[2]


def _place(path: Path, found: report.Report) -> int:
    names = [t.finding.name for t in found.findings]
    return names.index(_wanted(path)) if _wanted(path) in names else 99


if __name__ == "__main__":
    if sys.argv[1:]:
        others(sys.argv[1:])
    else:
        corpus()
        labs()
        cost()
