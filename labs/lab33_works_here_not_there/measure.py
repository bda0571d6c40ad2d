"""Measure lab33: checkpoints of friends and of strangers, and reports of machines that fit a lock or do not."""

import copy
import hashlib
import importlib
import io
import os
import pickle
import re
import sys
import warnings
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from breakfix.contract import describe, expect, function


@dataclass(frozen=True)
class Machine:
    """A lock, a machine's report, and what of it is at fault."""

    lock: str
    report: dict[str, Any]
    faults: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Inputs:
    """What honest checkpoints hold and their bytes; files that are no state; machines by name."""

    states: dict[str, dict[str, Any]]
    honest: dict[str, bytes]
    others: dict[str, bytes]
    fitting: dict[str, Machine]
    packages: dict[str, Machine]
    hosts: dict[str, Machine]

    @property
    def machines(self) -> dict[str, Machine]:
        return self.fitting | self.packages | self.hosts


def inputs(seed: int) -> Inputs:
    rng = np.random.default_rng(seed)
    states = _states(rng)
    draw = Draw(rng)
    return Inputs(states, _honest(states), _others(rng), _fitting(draw), _packages(draw), _hosts(draw))


# ------------------------------------------------------------------------------------------------------- honest files


def _states(rng: np.random.Generator) -> dict[str, dict[str, Any]]:
    def tensor(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape)).float()

    weights = OrderedDict(
        [("conv.weight", tensor(4, 3, 3, 3)), ("head.weight", tensor(5, 4)), ("head.bias", tensor(5))]
    )
    tied = tensor(6, 4)
    kinds = (torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.complex64)
    numbers = {"best": np.float64(rng.random()), "epoch": np.int64(rng.integers(99)), "loss": np.float32(rng.random())}
    arrays = {"prior": rng.random(5), "counts": rng.integers(0, 99, 5), "mean": rng.random(3).astype(np.float32)}
    return {
        "weights": {"model": weights, "epoch": int(rng.integers(99)), "name": "seam", "rates": [0.1, (0.2, None)]},
        "weights, old format": {"model": weights, "note": "written in 2019"},
        "optimizer": {"model": weights, "optimizer": _trained(weights, rng)},
        "tied": {"embed.weight": tied, "head.weight": tied, "row": tied[2]},
        "kinds": {str(kind): (10 * tensor(3, 2)).to(kind) for kind in kinds} | {"step": torch.tensor(7.0)},
        "parameters": {"weight": nn.Parameter(tensor(3, 3)), "frozen": nn.Parameter(tensor(2), requires_grad=False)},
        "from a card": {"model": weights},
        "numbers": {"model": weights, **numbers},
        "numbers, old format": {"model": weights, **numbers},
        "numbers of NumPy 1": {"model": weights, **numbers},
        "arrays": {"model": weights, **arrays},
        "arrays of NumPy 1": {"model": weights, **arrays},
    }


def _trained(weights: dict[str, Tensor], rng: np.random.Generator) -> dict:
    """The state of an Adam that has made a step."""
    parameters = [nn.Parameter(value.clone()) for value in weights.values()]
    optimizer = torch.optim.Adam(parameters, lr=float(rng.uniform(1e-4, 1e-2)))
    for parameter in parameters:
        parameter.grad = torch.from_numpy(rng.normal(size=tuple(parameter.shape))).float()
    optimizer.step()
    return optimizer.state_dict()


def _honest(states: dict[str, dict[str, Any]]) -> dict[str, bytes]:
    files = {}
    for name, state in states.items():
        card = mock.patch.object(torch.serialization, "location_tag", return_value="cuda:0")
        with card if name == "from a card" else mock.patch.dict({}):
            data = saved(state, old="old format" in name)
        files[name] = _by_numpy_1(data) if "NumPy 1" in name else data
    return files


def saved(state: Any, old: bool = False, protocol: int = 2) -> bytes:
    """The bytes that torch.save writes, in the old format or in today's."""
    file = io.BytesIO()
    torch.save(state, file, _use_new_zipfile_serialization=not old, pickle_protocol=protocol)
    return file.getvalue()


def _by_numpy_1(data: bytes) -> bytes:
    """The same checkpoint as NumPy 1 wrote it, whose inner module had another name."""
    return _rewritten(data, (b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))


def _rewritten(data: bytes, *pairs: tuple[bytes, bytes]) -> bytes:
    """A checkpoint whose pickle has other words in it."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as there, zipfile.ZipFile(file, "w") as here:
        for name in there.namelist():
            content = there.read(name)
            for old, new in pairs if name.endswith("data.pkl") else ():
                content = content.replace(old, new)
            here.writestr(name, content)
    return file.getvalue()


def _others(rng: np.random.Generator) -> dict[str, bytes]:
    """Whole models, and what is no checkpoint at all."""
    small = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    whole = saved({"weight": torch.from_numpy(rng.normal(size=(40, 40)))})
    return {
        "a whole model": saved(small),
        "a whole model, old format": saved(nn.Linear(3, 2), old=True),
        "a model among weights": saved({"model": small.state_dict(), "head": nn.Linear(2, 2)}),
        "a list of weights": saved(list(small.state_dict().values())),
        "cut short": whole[: int(len(whole) * rng.uniform(0.3, 0.7))],
        "a text": b"<html>404 Not Found</html>",
        "nothing": b"",
    }


# ------------------------------------------------------------------------------------------------------ hostile files


class Call:
    """What a pickle makes of it is the result of a call."""

    def __init__(self, called: Any, *arguments: Any) -> None:
        self.called, self.arguments = called, arguments

    def __call__(self) -> None:
        """Only what can be called may stand first in __reduce__."""

    def __reduce__(self):
        return self.called, self.arguments


def hostile(marker: str, state: dict[str, Any]) -> dict[str, bytes]:
    """Checkpoints that make the folder `marker` when they are unpickled; that is all the harm they do."""
    direct = Call(os.mkdir, marker)
    imported = Call(getattr, Call(importlib.import_module, "os"), "mkdir")
    spelled = Call(getattr, Call(importlib.import_module, Call("".join, ["o", "s"])), Call("".join, ["mk", "dir"]))
    optimizer = {"state": {0: {"step": torch.tensor(1.0), "exp_avg": [torch.ones(2), direct]}}, "param_groups": []}
    words = importlib.import_module("numpy.testing._private.utils").runstring
    script = f"import os; os.mkdir({marker!r})"
    return {
        "beside the weights": saved(state | {"note": direct}),
        "beside the weights, old format": saved(state | {"note": direct}, old=True),
        "before the weights": saved({"note": direct} | state),
        "in the optimizer": saved(state | {"optimizer": optimizer}),
        "a call of a call": saved(state | {"note": Call(imported, marker)}),
        "spelled out": saved(state | {"note": Call(spelled, marker)}),
        "spelled out, old format": saved(state | {"note": Call(spelled, marker)}, old=True),
        "deep down": saved(state | {"notes": OrderedDict([("first", 1), ("second", (1, [direct]))])}),
        "a string that is run": saved(state | {"note": Call(exec, script)}),
        "by way of numpy": saved(state | {"note": Call(words, script, {})}),
        "by way of torch": _by_attributes(saved(state | {"note": direct})),
    }


def _by_attributes(data: bytes) -> bytes:
    """The same call under a name that begins with torch: from protocol 4 on a name may walk through attributes."""
    plain = f"c{os.mkdir.__module__}\nmkdir\n".encode()
    return _rewritten(data, (plain, b"ctorch.serialization\nos.mkdir\n"), (b"\x80\x02", b"\x80\x04"))


# ------------------------------------------------------------------------------------------------------------ machines


class Draw:
    """Draws locks and reports of machines; everything that a machine is not told to have wrong, fits."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def among(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def machine(self, faults: str = "", lock: dict[str, str] | None = None, **changes: Any) -> Machine:
        """One that fits its lock, but for `changes`: to the report, or to its packages as `packages={...}`."""
        minor, python = int(self.rng.integers(11, 15)), int(self.rng.integers(11, 14))
        tag, image = self.among("cu126", "cu128", "cu130"), f"inspector@sha256:{self.rng.bytes(4).hex()}"
        asks = {
            "python": f"==3.{python}.*",
            "torch": f"==2.{minor}.1+{tag}",
            "torchvision": f"==0.{minor + 15}.1+{tag}",
            "numpy": ">=1.26,<3",
            "safetensors": "~=0.8.0",
            "label-kit": ">=1.4,!=1.5.0",
        }
        report = {
            "image": self.among(image, image, "built by hand"),
            "python": f"3.{python}.{self.rng.integers(1, 15)}",
            "packages": {
                "torch": f"2.{minor}.1+{tag}",
                "torchvision": f"0.{minor + 15}.1+{tag}",
                "numpy": f"2.{self.rng.integers(5)}.{self.rng.integers(9)}",
                "safetensors": f"0.8.{self.rng.integers(9)}",
                "label-kit": f"1.{self.rng.integers(6, 14)}.0",
                "pillow": "13.0.0",
            },
            "requires": {"torchvision": [f"torch (>=2.{minor}.0)", "pillow (!=8.3.*,>=5.3.0)", "numpy"]},
            "built_with_numpy": {"label-kit": "2.1.0"},
            "arch_list": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
            "driver": f"580.{self.rng.integers(65, 130)}.{self.rng.integers(10, 99)}",
            "cards": [self.among(*_CARDS)],
        }
        report["packages"] = packages = self._shuffled(_changed(report["packages"], changes.pop("packages", {})))
        tag = packages["torch"].partition("+")[2] or tag
        report["cuda"] = None if tag == "cpu" else f"{tag[2:4]}.{tag[4]}"
        report["requires"] |= changes.pop("requires", {})
        report["built_with_numpy"] |= changes.pop("built_with_numpy", {})
        return Machine(self._lock(image, _changed(asks, lock or {})), report | changes, frozenset(faults.split()))

    def _shuffled(self, items: dict[str, str]) -> dict[str, str]:
        names = list(items)
        return {names[i]: items[names[i]] for i in self.rng.permutation(len(names))}

    def _lock(self, image: str, asks: dict[str, str]) -> str:
        lines = [f"{name}{self.among(' ', '')}{conditions}" for name, conditions in self._shuffled(asks).items()]
        lines[0] += "  # see the wiki, page numpy"
        return "\n".join([f"# image: {image}", "", *lines, ""])


def _changed(items: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    """With None something is left out."""
    return {name: value for name, value in (items | changes).items() if value is not None}


def _card(name: str, major: int, minor: int) -> dict[str, Any]:
    return {"name": name, "capability": [major, minor]}


_CARDS = (_card("T4", 7, 5), _card("A100", 8, 0), _card("A40", 8, 6), _card("H200", 9, 0), _card("B200", 10, 0))
_V100, _L40S, _RTX_5090, _SPARK = (
    _card("V100", 7, 0),
    _card("L40S", 8, 9),
    _card("RTX 5090", 12, 0),
    _card("GB10", 12, 1),
)
_CPU = {"arch_list": [], "driver": None, "cards": []}
_RANGE = {"torch": ">=2.9,<3", "torchvision": ">=0.24,<1"}
_CPU_WHEELS = {"torch": "2.14.1+cpu", "torchvision": "0.29.1+cpu"}
_CUDA_12 = {"torch": "2.14.1+cu128", "torchvision": "0.29.1+cu128"}
_CUDA_13 = {"torch": "2.14.1+cu130", "torchvision": "0.29.1+cu130"}


def _fitting(draw: Draw) -> dict[str, Machine]:
    rows = draw.among("1.26.4", "1.26.2")
    extras = {"left-over": "0.1", "wx-tools": "9.9.9", "nbformat": "5.10.4"}
    return {
        "as locked": draw.machine(),
        "2.14 is above 2.9": draw.machine(
            lock=_RANGE, packages=_CUDA_13, requires={"torchvision": ["torch (>=2.14.0)"]}
        ),
        "any tag": draw.machine(
            lock={"torch": "==2.14.1", "torchvision": "==0.29.1"}, packages=_CUDA_13, requires={"torchvision": []}
        ),
        "packages that nobody asked for": draw.machine(
            packages=extras,
            requires={"left-over": ["torch (<2)"], "pillow": ["olefile"]},
            built_with_numpy={"wx-tools": "1.24.0"},
        ),
        "names spelled otherwise": draw.machine(
            lock={"label-kit": None, "Label_Kit": "==1.9.0"}, packages={"label-kit": None, "label.kit": "1.9.0"}
        ),
        "another image, same packages": draw.machine(lock=_RANGE, packages=_CUDA_13, image="inspector@sha256:00000000"),
        "optional requirements": draw.machine(requires={"safetensors": ["jax (>=0.4) ; extra == 'jax'"]}),
        "built with NumPy 2, run with 1": draw.machine(packages={"numpy": rows}),
        "a card of the same generation": draw.machine(cards=[_L40S], arch_list=["sm_80", "sm_86", "sm_90"]),
        "a newer card of the newest generation": draw.machine(cards=[_SPARK]),
        "kernels of this very card": draw.machine(cards=[_card("H200", 9, 0)], arch_list=["sm_80", "sm_90a"]),
        "a card that takes PTX": draw.machine(cards=[_RTX_5090], arch_list=["sm_80", "sm_90", "compute_90"]),
        "driver 580.105 is above 580.65": draw.machine(driver=f"580.{draw.among(100, 105, 126)}.08"),
        "CUDA 12 on an older driver": draw.machine(
            lock=_RANGE, packages=_CUDA_12, driver=f"5{draw.among(35, 50, 70)}.86.10"
        ),
        "no card, no CUDA": draw.machine(
            lock=_RANGE, packages=_CPU_WHEELS, requires={"torchvision": ["torch (>=2.14.0)"]}, **_CPU
        ),
    }


def _packages(draw: Draw) -> dict[str, Machine]:
    gone = draw.among("safetensors", "label-kit")
    old, other = f"2.9.{draw.rng.integers(2)}", f"0.{draw.among(7, 9)}.2"
    torchvision = {"torchvision": ["torch (==2.11.0)", "numpy"]}
    return {
        "2.9 is below 2.10": draw.machine(
            "torch", lock=_RANGE | {"torch": ">=2.10"}, packages={"torch": old}, requires={"torchvision": []}
        ),
        "CPU wheels for CUDA ones": draw.machine(
            "torch torchvision",
            lock={"torch": "==2.14.1+cu130", "torchvision": "==0.29.1+cu130"},
            packages=_CPU_WHEELS,
            requires={"torchvision": ["torch (>=2.14.0)"]},
            **_CPU,
        ),
        "another CUDA": draw.machine(
            "torch", lock={"torch": "==2.14.1+cu130"}, packages={"torch": "2.14.1+cu126"}, requires={"torchvision": []}
        ),
        "torchvision of an older torch": draw.machine(
            "torchvision", lock=_RANGE, packages={"torch": "2.14.1", "torchvision": "0.26.0"}, requires=torchvision
        ),
        "torchvision of a newer torch": draw.machine(
            "torchvision",
            lock=_RANGE,
            packages={"torch": "2.11.0", "torchvision": "0.29.1"},
            requires={"torchvision": ["torch (>=2.14.0)"]},
        ),
        "not installed": draw.machine(gone, packages={gone: None}),
        "an excluded version": draw.machine("label-kit", packages={"label-kit": "1.5.0"}),
        "not of the minor version": draw.machine("safetensors", packages={"safetensors": other}),
        "another Python": draw.machine("python", lock={"python": "==3.10.*"}),
        "asked for on this Python alone": draw.machine(
            "safetensors",
            lock={"python": "==3.10.*"},
            python=f"3.10.{draw.rng.integers(4, 19)}",
            requires={"safetensors": ["exceptiongroup (>=1.2) ; python_version < '3.11'"]},
        ),
        "built with NumPy 1": draw.machine("label-kit", built_with_numpy={"label-kit": "1.24.4"}),
        "another NumPy": draw.machine("numpy", lock={"numpy": "<2"}),
    }


def _hosts(draw: Draw) -> dict[str, Machine]:
    cuda_13 = {"lock": _RANGE, "packages": _CUDA_13}
    wheels = {"lock": _RANGE, "packages": _CPU_WHEELS, "requires": {"torchvision": []}, "arch_list": []}
    return {
        "a driver of before CUDA 13": draw.machine("driver", driver=f"5{draw.among(50, 70, 75)}.86.10", **cuda_13),
        "driver 580.9 is below 580.65": draw.machine("driver", driver="580.9.2", **cuda_13),
        "no driver": draw.machine("driver", driver=None),
        "a card that is too old": draw.machine("kernels", cards=[_V100]),
        "a card that is too new": draw.machine("kernels", cards=[_RTX_5090], arch_list=["sm_80", "sm_86", "sm_90"]),
        "kernels of a later card": draw.machine("kernels", cards=[_card("A100", 8, 0)], arch_list=["sm_75", "sm_86"]),
        "kernels of one card alone": draw.machine(
            "kernels", cards=[_card("B300", 10, 3)], arch_list=["sm_90", "sm_100a"]
        ),
        "the second of two cards": draw.machine("kernels", cards=[_card("H200", 9, 0), _V100]),
        "a CPU wheel beside a card": draw.machine("torch", **wheels),
        "several at once": draw.machine(
            "python driver kernels safetensors",
            lock={"python": "==3.10.*"},
            packages={"safetensors": None},
            driver=None,
            cards=[_V100],
        ),
    }


# ------------------------------------------------------------------------------------------------------ the measurement


def measure(subject, seed: int, device: torch.device) -> dict:
    load = function(subject, "load_checkpoint(path) -> dict")
    check = function(subject, "check_environment(lock, report) -> list[tuple[str, str]]")
    given = inputs(seed)
    _listen()
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bench = Bench(load, Path(folder))
        evidence = bench.honest(given) | bench.others(given) | bench.strangers(given)
    named = {name: _named(check, machine) for name, machine in given.machines.items()}
    missed = [len(machine.faults - set(named[name])) for name, machine in given.machines.items()]
    extra = [len(set(named[name]) - machine.faults) for name, machine in given.machines.items()]
    return (
        evidence
        | {
            "named": named,
            "machines.missed": np.array(missed),
            "machines.extra": np.array(extra),
            "hostile.count": len(evidence["hostile.ran"]),
            "counts": np.array(
                [sum(missed), sum(extra), len(evidence["hostile.ran"]), len(evidence["others.returned"])]
            ),
        }
        | _answers()
    )


def _named(check, machine: Machine) -> list[str]:
    """What the subject finds at fault; what it raises instead counts as one more."""
    try:
        found = check(machine.lock, copy.deepcopy(machine.report))
    except Exception as error:
        return [f"raised {type(error).__name__}"]
    fits = isinstance(found, list) and all(
        isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) for p in found
    )
    expect(fits, "check_environment", wanted="a list of (what is at fault, why)", got=describe(found))
    return sorted({re.sub(r"[-_.]+", "-", part).lower() for part, _ in found})


@dataclass
class Bench:
    """Loads files by the subject's function, and hears what that opens, makes or runs."""

    load: Any
    folder: Path

    def honest(self, given: Inputs) -> dict:
        leaves, raised = {}, {}
        for name, data in given.honest.items():
            came, error = self._loaded(data)
            fits = error or isinstance(came, dict)
            expect(fits, "load_checkpoint", wanted="the dict that was saved", got=describe(came))
            leaves[name] = described(came)
            raised |= {name: error} if error else {}
        return {"honest.leaves": leaves, "honest.raised": raised}

    def others(self, given: Inputs) -> dict:
        """Those that were not refused."""
        return {"others.returned": [name for name, data in given.others.items() if not self._loaded(data)[1]]}

    def strangers(self, given: Inputs) -> dict:
        """Of the hostile ones: which ran, and which were not refused."""
        ran, returned = [], []
        for number, name in enumerate(hostile("", {})):
            marker = str(self.folder / f"made by loading {number}")
            HEARD.clear()
            _, error = self._loaded(hostile(marker, given.states["weights"])[name])
            ran += [name] if marker in HEARD or os.path.exists(marker) else []
            returned += [] if error else [name]
        return {"hostile.ran": ran, "hostile.returned": returned}

    def _loaded(self, data: bytes) -> tuple[Any, str]:
        """What came of a file, and the name of what was raised."""
        path = self.folder / "checkpoint.pt"
        path.write_bytes(data)
        try:
            return self.load(path), ""
        except Exception as error:
            return None, type(error).__name__


HEARD: set[str] = set()  # folders that somebody has made, or wanted to make


@lru_cache
def _listen() -> None:
    """Once, as a hook cannot be taken off again."""
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple) -> None:
    if event == "os.mkdir":
        HEARD.add(str(arguments[0]))


def described(value: Any, at: str = "") -> list[str]:
    """Each leaf of a state in a line: where it is, what it is, and its value or a checksum of its bytes."""
    if isinstance(value, dict):
        return [line for key, part in value.items() for line in described(part, f"{at}/{key}")]
    if isinstance(value, list | tuple):
        return [line for i, part in enumerate(value) for line in described(part, f"{at}/{i}")]
    if isinstance(value, Tensor):
        raw = value.detach().contiguous()
        words = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} on {value.device.type}"
        return [f"{at}: {words} {_checksum(raw.reshape(-1).view(torch.uint8).numpy().tobytes())}"]
    if isinstance(value, np.ndarray):
        return [f"{at}: {value.dtype} {list(value.shape)} on cpu {_checksum(value.tobytes())}"]
    return [f"{at}: {value.item() if isinstance(value, np.generic) else value!r}"]


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _answers() -> dict:
    """For the predictions. The subject has no part in it."""
    return {
        "string.below": "2.14.1" < "2.9",
        "version.below": torch.torch_version.TorchVersion("2.14.1") < "2.9",
        "scalar.alone": _refused(saved({"best": np.float64(1.0)})),
    }


def _refused(data: bytes) -> str:
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except pickle.UnpicklingError:
        return "refused"
    return "loaded"
