# wrong: test_faults_of_the_host_are_named
# The letter is read and forgotten: sm_100a is taken for sm_100, and runs on 10.3 as little as on 9.0.
"""Before a plant switches to a new model: does its machine fit the lock, and what is in the checkpoint?"""

import os
import pickle
import platform
import re
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

LOCK = """
# image: inspector@sha256:5f2c09
python ==3.11.*
torch >=2.9,<2.15
torchvision >=0.24,<0.30
numpy >=1.26,<3
safetensors >=0.6  # the gateway reads these
"""
DRIVERS = {"12": "525.60.13", "13": "580.65.06"}  # the oldest driver for each CUDA


CORES = "numpy.core.multiarray", "numpy._core.multiarray"  # where NumPy 1 and 2 keep the two below
MAKERS = {"scalar": np.float64(0).__reduce__()[0], "_reconstruct": np.zeros(1).__reduce__()[0]}
NUMBERS = [
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in "?bBhHiIlLqQefd"},  # and no "O", which holds objects
    *[(make, f"{core}.{name}") for core in CORES for name, make in MAKERS.items()],
]


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What a training run has saved, its tensors on the CPU. Raises on whatever is more than values."""
    with torch.serialization.safe_globals(NUMBERS):
        state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise pickle.UnpicklingError(f"{path} holds no state, but a {type(state).__name__}")
    return state


Problems = Iterator[tuple[str, str]]


def check_environment(lock: str, report: dict[str, Any]) -> list[tuple[str, str]]:
    """(what is at fault, why) for everything in which a machine does not fit; empty if it fits.

    The image's name tells nothing: what is in it is in the report, and driver and card are not in it.
    """
    asked = [Requirement(line) for text in lock.splitlines() if (line := text.partition("#")[0].strip())]
    packages = {canonicalize_name(name): Version(found) for name, found in report["packages"].items()}
    return [*package_problems(asked, packages, report), *host_problems(report)]


def package_problems(asked: list[Requirement], packages: dict[str, Version], report: dict[str, Any]) -> Problems:
    """Versions against the lock, and for what the lock names: what it asks of others, and NumPy's ABI."""
    requires = {canonicalize_name(name): others for name, others in report["requires"].items()}
    built = {canonicalize_name(name): version for name, version in report["built_with_numpy"].items()}
    numpy = packages.get("numpy", Version("0"))
    python = report["python"]  # a marker is about that machine, and this code runs on another
    there = {"extra": "", "python_full_version": python, "python_version": python.rpartition(".")[0]}
    for requirement in asked:
        name = canonicalize_name(requirement.name)
        found = Version(report["python"]) if name == "python" else packages.get(name)
        if not meets(found, requirement):
            yield name, f"{found or 'not installed'}, locked is {requirement.specifier}"
        for other in map(Requirement, requires.get(name, ())):
            wanted = other.marker is None or other.marker.evaluate(there)
            if wanted and not meets(packages.get(canonicalize_name(other.name)), other):
                yield name, f"asks for {other}"
        if name in built and Version(built[name]).major < 2 <= numpy.major:
            yield name, f"compiled for NumPy {built[name]}, and NumPy is {numpy}"


def meets(found: Version | None, requirement: Requirement) -> bool:
    """Whether a version is there and is one of those asked for."""
    return found is not None and requirement.specifier.contains(found, prereleases=True)


def host_problems(report: dict[str, Any]) -> Problems:
    """What the cards of a machine need: a torch built for CUDA, a driver that knows that CUDA, kernels."""
    cuda, driver, cards = report["cuda"], report["driver"], report["cards"]
    if not cards:
        return
    if cuda is None:
        yield "torch", "built for CPUs, and there is a card"
        return
    oldest = DRIVERS[cuda.partition(".")[0]]
    if driver is None or Version(driver) < Version(oldest):
        yield "driver", f"{driver}, and CUDA {cuda} needs {oldest}"
    for card in cards:
        if not any(runs_on(tuple(card["capability"]), arch) for arch in report["arch_list"]):
            yield "kernels", f"none for {card['name']} among {', '.join(report['arch_list'])}"


def runs_on(capability: tuple[int, int], arch: str) -> bool:
    """Whether a card runs what was compiled for `arch`: its own generation's kernels, PTX of any before it."""
    kind, major, minor, _ = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch).groups()
    built = int(major), int(minor)
    return built <= capability and (kind == "compute" or built[0] == capability[0])


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
