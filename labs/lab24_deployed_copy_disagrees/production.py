"""A box in the field: saved programs and none of our code. Answers recordings, and says which it refused.

python production.py ARTIFACT REQUESTS.npz ANSWERS.npz DEVICE [ROUTE.py]
"""

import json
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

warnings.simplefilter("ignore")  # torch.jit.load says that it is deprecated; the lab does


def main(artifact: Path, requests: Path, answers: Path, device: str, shipped: Path | None = None) -> None:
    programs = {path.name: opened(path, device) for path in sorted(artifact.iterdir()) if path.suffix in OPENERS}
    route = load(shipped) if shipped else lambda batch: (next(iter(programs)), (batch,))
    arrays, errors = {}, {}
    for name, batch in read(requests, device).items():
        try:
            arrays[name] = answered(programs, route, batch)
        except Exception as error:
            if not errors and not name.startswith("bad"):  # those are there to be refused
                traceback.print_exc()  # one is enough to see why
            errors[name] = type(error).__name__
    np.savez(answers, report=json.dumps({"errors": errors, "programs": list(programs)}), **arrays)


def open_exported(path: Path, device: str) -> Callable:
    """A program that torch.export.save wrote."""
    program = torch.export.load(path)
    if device != "cpu":  # not run on a GPU yet
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    return program.module()


def open_scripted(path: Path, device: str) -> Callable:
    """A program that torch.jit.save wrote."""
    return torch.jit.load(path, map_location=device)


OPENERS = {".pt2": open_exported, ".pt": open_scripted}


def opened(path: Path, device: str) -> Callable:
    """One program of the artifact, by the ending of its file."""
    return OPENERS[path.suffix](path, device)


def answered(programs: dict[str, Callable], route: Callable, batch: dict[str, Tensor]) -> np.ndarray:
    """What the program that `route` names says to what `route` hands it."""
    name, arguments = route(batch)
    with torch.no_grad():
        answer = programs[name](*arguments)
    if not isinstance(answer, Tensor):
        raise TypeError("a program must answer with one tensor")
    return answer.cpu().numpy()


def load(path: Path) -> Callable:
    """The shipped route function."""
    names: dict = {}
    exec(compile(path.read_text("utf-8"), str(path), "exec"), names)
    return names["route"]


def read(path: Path, device: str) -> dict[str, dict[str, Tensor]]:
    """The recordings by name, each a dict of tensors."""
    requests: dict[str, dict[str, Tensor]] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            name, _, part = key.partition("/")
            requests.setdefault(name, {})[part] = torch.from_numpy(arrays[key]).to(device)
    return requests


if __name__ == "__main__":
    artifact, requests, answers, device, *shipped = sys.argv[1:]
    main(Path(artifact), Path(requests), Path(answers), device, *map(Path, shipped))
