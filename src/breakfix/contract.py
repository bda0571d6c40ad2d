"""The contract between a lab and a subject: which functions there are, what they take, what they return.

A learner may restructure all else, so a breach names the function, what was wanted and what came.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


class Contract(Exception):
    """A subject broke its lab's contract."""


def function(subject: ModuleType, stub: str) -> Callable:
    """The subject's function that `stub` describes, as in "loss_fn(logits, targets) -> Tensor". Raises Contract."""
    name = stub.partition("(")[0]
    found = getattr(subject, name, None)
    if not callable(found):
        came = "it has none of that name" if found is None else f"there {name} is {describe(found)}"
        raise Contract(f"{_file_of(subject)} must define {stub}; {came}")
    return found


def expect(holds: bool, name: str, wanted: str, got: str) -> None:
    """Raise Contract unless `holds`: function `name` was to return `wanted`, and `got` is what came."""
    if not holds:
        raise Contract(f"{name} must return {wanted}; it returned {got}")


PARAMETERS_OF_TODAY = "a model with the parameters of today, by name and shape"


def expect_tensors(found: Mapping[str, Any], like: Mapping[str, Any], name: str, wanted: str) -> None:
    """Raise Contract unless what function `name` returned has the tensors of `like`: names to shapes, or the like."""
    odd = [f"{key} {found.get(key, 'missing')}" for key in like | found if like.get(key) != found.get(key)]
    expect(not odd, name, wanted=wanted, got=", ".join(odd[:3]))


def describe(value: Any) -> str:
    """What a value is, in a few words: "float32 tensor [3, 4] on cpu", "tuple of 2", "None"."""
    kind = type(value).__name__
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)[:80]
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        tensor = hasattr(value, "detach")  # NumPy's arrays have a device too
        noun, where = ("tensor", f" on {value.device}") if tensor else ("array", "")
        return f"{str(value.dtype).removeprefix('torch.')} {noun} {list(value.shape)}{where}"
    if isinstance(value, list | tuple | dict | set):
        return f"{kind} of {len(value)}"
    return f"a {kind}"


def _file_of(subject: ModuleType) -> str:
    return str(getattr(subject, "__file__", "the subject")).replace("\\", "/").rpartition("/")[2]
