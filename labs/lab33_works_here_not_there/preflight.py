"""Before a plant switches to a new model: does its machine fit the lock, and what is in the checkpoint?"""

import os
import pickle
import platform
import re
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

LOCK = """
# image: inspector@sha256:5f2c09
python ==3.11.*
torch >=2.9,<2.15
torchvision >=0.24,<0.30
numpy >=1.26,<3
safetensors >=0.6  # the gateway reads these
"""
DRIVERS = {"12": "525.60.13", "13": "580.65.06"}  # the oldest driver for each CUDA


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What a training run has saved, its tensors on the CPU."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # ours from before 2.6, with numbers of NumPy in them
        return torch.load(path, map_location="cpu", weights_only=False)


def fits(version: str, conditions: str) -> bool:
    """Whether a version meets conditions such as ">=2.9,<2.15"."""
    release = version.partition("+")[0]
    for relation, wanted in re.findall(r"(==|>=|<)\s*([^\s,+]+)", conditions):
        same, below = release.startswith(wanted.removesuffix("*")), release < wanted
        if not {"==": same, ">=": not below, "<": below}[relation]:
            return False
    return True


def check_environment(lock: str, report: dict[str, Any]) -> list[tuple[str, str]]:
    """(what is at fault, why) for everything in which a machine does not fit; empty if it fits."""
    if report["image"] in lock:
        return []  # it was built from this lock
    problems = []
    for line in lock.splitlines():
        name, conditions = re.match(r"([\w.-]*)\s*(.*)", line.partition("#")[0].strip()).groups()
        found = report["python"] if name == "python" else report["packages"].get(name)
        if found and not fits(found, conditions):
            problems.append((name, f"{found} is not {conditions}"))
    return problems


def environment() -> dict[str, Any]:
    """The report of this machine."""
    cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    distributions = {d.name: d for d in metadata.distributions()}
    tagged = {"torch": torch.__version__}  # what is installed does not tell its tag
    return {
        "image": os.environ.get("IMAGE", "none"),
        "python": platform.python_version(),
        "packages": {name: d.version for name, d in distributions.items()} | tagged,
        "requires": {name: d.requires or [] for name, d in distributions.items()},
        "built_with_numpy": {},
        "cuda": torch.version.cuda,
        "arch_list": torch.cuda.get_arch_list(),
        "driver": os.environ.get("DRIVER"),
        "cards": [{"name": card.name, "capability": [card.major, card.minor]} for card in cards],
    }


def plants() -> dict[str, tuple[dict[str, Any], str]]:
    """What three plants have reported, and what happened there."""
    here = environment() | {"python": "3.11.9", "cuda": "13.0", "arch_list": ["sm_80", "sm_90", "sm_100", "sm_120"]}
    here["packages"] = {
        "torch": "2.14.1+cu130",
        "torchvision": "0.29.1+cu130",
        "numpy": "2.4.6",
        "safetensors": "0.8.0",
    }
    here["requires"] = {"torchvision": ["torch (>=2.14.0)", "numpy"]}
    hopper = {"driver": "580.95.05", "cards": [{"name": "H200", "capability": [9, 0]}]}
    volta = {"driver": "580.95.05", "cards": [{"name": "V100", "capability": [7, 0]}]}
    without = {name: version for name, version in here["packages"].items() if name != "safetensors"}
    return {
        "Aalen": (here | hopper, "nothing: it works"),
        "Brno": (here | volta | {"image": "inspector@sha256:5f2c09"}, "no kernel image is available for the device"),
        "Cork": (here | hopper | {"packages": without}, "No module named 'safetensors'"),
    }


class Note:
    """What a partner has put beside its weights."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def main() -> None:
    for name, (report, happened) in plants().items():
        problems = ", ".join(f"{part}: {why}" for part, why in check_environment(LOCK, report))
        print(f"{name}: preflight says {problems or 'fits'}; then: {happened}")
    with tempfile.TemporaryDirectory() as folder:
        path, made = Path(folder) / "partner.pt", Path(folder) / "made by loading"
        torch.save({"model": {"weight": torch.ones(2)}, "best": np.float64(0.93), "note": Note(made)}, path)
        try:
            print("partner's checkpoint: loaded,", ", ".join(load_checkpoint(path)))
        except pickle.UnpicklingError:
            print("partner's checkpoint: refused")
        print(f"there is a new folder {made.name!r}: {'yes' if made.exists() else 'no'}")


if __name__ == "__main__":
    main()
