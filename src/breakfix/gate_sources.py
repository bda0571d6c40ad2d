"""What a gate may be given on the command line: functions, exported programs, ONNX files, and files of requests.

today.py:model    package.module:model    release.pt2    release.onnx
requests.pt    requests.npz    requests.py:recorded
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from breakfix.contract import describe
from breakfix.subject import own_words

MODELS = "a function as in file.py:name or package.module:name, a torch.export program (.pt2) or an ONNX file (.onnx)"
REQUESTS = "a file of tensors (.pt), of arrays (.npz), or a function that yields requests, as in file.py:name"


class BadSource(ValueError):
    """What was named cannot be used; the message says why, and what can."""


class MissingPackage(ImportError):
    """What was named needs a package that is not there."""


def load_model(source: str) -> Callable:
    """The function that `source` names. Raises BadSource, MissingPackage."""
    if source.endswith(".pt2"):
        return _exported(_file(source))
    if source.endswith(".onnx"):
        return _onnx(_file(source))
    if ":" not in source:
        raise BadSource(f"{source}: name {MODELS}")
    found = _named(source)
    if isinstance(found, type) or not callable(found):
        what = "a class" if isinstance(found, type) else describe(found)
        raise BadSource(f"{source} is {what}; name a function, or an object that can be called")
    if isinstance(found, nn.Module) and found.training:
        raise BadSource(f"{source} is a module in training mode; call eval() on it there, as production does")
    return found


def load_requests(source: str, device: str = "cpu") -> dict[str, Any]:
    """The requests that `source` names, by name, their tensors on `device`. Raises BadSource."""
    if source.endswith(".pt"):
        requests = _saved(_file(source))
    elif source.endswith(".npz"):
        requests = _arrays(_file(source))
    elif ":" in source:
        requests = _yielded(source)
    else:
        raise BadSource(f"{source}: name {REQUESTS}")
    if not requests:
        raise BadSource(f"{source} holds no request")
    for name, request in requests.items():
        if not any(isinstance(leaf, Tensor) for leaf in _leaves(request)):
            raise BadSource(f"{source}: {name} is {describe(request)}, with no tensor in it")
    return {name: _on(request, device) for name, request in requests.items()}


# -------------------------------------------------------------------------------------------------------------- models


def _file(source: str) -> Path:
    if not Path(source).is_file():
        raise BadSource(f"{source}: there is no such file")
    return Path(source)


def _exported(path: Path) -> Callable:
    try:
        return torch.export.load(path).module()
    except Exception as error:  # a zip of something else, a broken one, another version's
        raise BadSource(f"{path} is no program that torch.export.save wrote: {_brief(error)}") from error


def _onnx(path: Path) -> Callable:
    from breakfix.probes.parity import onnx_callable

    try:
        return onnx_callable(path)
    except ImportError as error:
        raise MissingPackage(str(error)) from error
    except Exception as error:  # of the runtime's own kinds
        raise BadSource(f"{path} is no ONNX file that onnxruntime opens: {_brief(error)}") from error


def _named(source: str) -> Any:
    """The object behind file.py:name or package.module:name; a name may have dots."""
    place, _, name = source.rpartition(":")
    module = _module_of_file(_file(place)) if place.endswith(".py") else _module(place)
    try:
        return attrgetter(name)(module)
    except AttributeError:
        names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise BadSource(f"{place} has no {name}; it has {', '.join(names[:12]) or 'nothing to call'}") from None


def _module_of_file(path: Path) -> Any:
    """The file as a module, loaded once; what lies beside it can be imported by it."""
    path = path.resolve()
    name = f"breakfix_gate_{path.stem}_{abs(hash(path))}"
    if name in sys.modules:
        return sys.modules[name]
    _look_in(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BadSource(f"{path.name} cannot be loaded:\n{own_words(error, str(path))}") from error
    return module


def _module(name: str) -> Any:
    _look_in(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if name == error.name or name.startswith(f"{error.name}."):
            raise BadSource(f"there is no module {name}, here or among what is installed") from None
        raise BadSource(f"{name} cannot be imported: {error}") from error
    except Exception as error:
        raise BadSource(f"{name} cannot be imported: {_brief(error)}") from error


def _look_in(folder: Path) -> None:
    if os.fspath(folder) not in sys.path:
        sys.path.append(os.fspath(folder))  # last: a random.py there is not Python's own


def _brief(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


# ------------------------------------------------------------------------------------------------------------ requests


def _saved(path: Path) -> dict[str, Any]:
    """A list holds requests; anything else is one request."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a zip of something else, or classes that only running code could make
        told = "torch.save a list of tensors, of tuples (positional arguments) or of dicts (keywords)"
        raise BadSource(f"{path} cannot be read without running what is in it; {told}: {_brief(error)}") from error
    return _numbered(found if isinstance(found, list) else [found])


def _arrays(path: Path) -> dict[str, Any]:
    """Each array is a request, by its name."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: torch.from_numpy(file[name]) for name in file.files}
    except Exception as error:  # no zip, or arrays of objects
        raise BadSource(f"{path} is no file of plain arrays: {_brief(error)}") from error


def _yielded(source: str) -> dict[str, Any]:
    """What a function yields, or what an iterable holds."""
    found = _named(source)
    try:
        made = found() if callable(found) and not isinstance(found, Tensor) else found
        if isinstance(made, Mapping):
            return {str(name): request for name, request in made.items()}
        if not isinstance(made, Iterable) or isinstance(made, Tensor):
            raise BadSource(f"{source} gives {describe(made)}; let it yield requests")
        return _numbered(made)
    except BadSource:
        raise
    except Exception as error:
        path = getattr(sys.modules.get(getattr(found, "__module__", "")), "__file__", "") or source
        raise BadSource(f"{source} cannot be asked for requests:\n{own_words(error, path)}") from error


def _numbered(requests: Iterable[Any]) -> dict[str, Any]:
    return {f"request {i}": request for i, request in enumerate(requests)}


def _leaves(request: Any) -> list[Any]:
    from breakfix.probes.parity import leaves

    return [leaf for _, leaf in leaves(request)]


def _on(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _on(child, device) for key, child in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_on(child, device) for child in value)
    with suppress(TypeError):
        return torch.from_numpy(value).to(device)
    return value
