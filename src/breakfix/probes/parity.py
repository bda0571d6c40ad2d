"""Do two implementations give the same answer, and which layer is the first that does not.

    differences = compare(model, onnx_callable("model.onnx"), {"6 tokens": (six, photo), "20 tokens": (twenty, photo)})
    print(first_divergence(model, "model.onnx", (twenty, photo)))

Shape and dtype come first, nothing broadcasts, a nan equals nothing, and the bound goes with the size of the array that
it is about: multiplying both sides by a thousand changes no verdict, as it would with one `atol` for all.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# What distance() may be: many times what two right kernels differ by, far less than a wrong answer does.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2, "complex64": 1e-4, "complex128": 1e-9}
WHOLE = "(whole model)"

Leaves = list[tuple[str, Any]]  # the values inside an output, each with its name
Layers = dict[tuple[str, int], Leaves]  # what each layer returned: (its name, which call of it)


@dataclass(frozen=True)
class Difference:
    """One way in which a candidate is not the reference, at one input or one layer."""

    at: str  # the input's name, or the layer's
    output: str  # the output's name or place; "" where there is one only
    what: str  # "raises", "outputs", "shape", "dtype", "nan" or "value"
    got: str
    want: str
    error: float = math.inf  # distance(), where the values could be compared

    def __str__(self) -> str:
        place = f"{self.at}, {self.output}" if self.output else self.at
        return f"{place}: {self.what} {self.got}, wanted {self.want}"


def relative_error(got, want) -> float:
    """||got - want|| / ||want|| in float64, absolute if want is zero; nan if either has one, inf if shapes differ."""
    got, want = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
    if got.shape != want.shape:
        return math.inf
    distance, size = np.linalg.norm((got - want).ravel()), np.linalg.norm(want.ravel())
    return float(distance / size if size > 0 else distance)


def distance(got, want) -> float:
    """The largest |got - want| / (|want| + rms of want), absolute where want is zero; nan and inf as in relative_error.

    An element near zero is measured against the array round it, and a large array's slack does not cover a small one.
    Infinities of one sign are equal.
    """
    got, want = _numbers(got), _numbers(want)
    if got.shape != want.shape:
        return math.inf
    unlike = got != want  # a nan is unlike everything, an infinity like itself
    if not unlike.any():
        return 0.0
    finite = np.abs(want[np.isfinite(want)])
    unit = finite.max(initial=0.0) or 1.0  # the square of 1e200 would overflow
    with np.errstate(all="ignore"):
        scale = np.abs(want[unlike]) / unit + math.sqrt(np.mean((finite / unit) ** 2) if finite.size else 0.0)
        error = np.abs(got[unlike] / unit - want[unlike] / unit) / np.where(scale > 0, scale, 1.0)
    error[np.isinf(want[unlike]) & ~np.isnan(got[unlike])] = math.inf
    return float(error.max())


def compare(
    reference: Callable, candidate: Callable, inputs: Mapping[str, Any], tolerance: float | None = None
) -> list[Difference]:
    """Every difference between two callables over named inputs; an empty list where there is none.

    An input is a tuple (positional arguments), a dict (keywords) or one value. Outputs are tensors, arrays or numbers,
    alone or in tuples, lists and dicts. What the reference raises is raised; what the candidate raises is a difference.
    `tolerance` bounds distance(); without it TOLERANCE of the wanted dtype does. Integers and booleans must be equal.
    """
    found = []
    for name, arguments in inputs.items():
        want = leaves(_call(reference, arguments))
        try:
            got = leaves(_call(candidate, arguments))
        except Exception as error:
            found.append(Difference(name, "", "raises", f"{type(error).__name__}: {error}", "an answer"))
        else:
            found += _differences(name, got, want, tolerance)
    return found


def first_divergence(reference, candidate, inputs: Any, tolerance: float | None = None) -> Difference | None:
    """The first layer, in the order in which the reference's layers finish, that the candidate does not reproduce.

    `reference` is a module; `candidate` a second one with layers of the same names, or the path of an ONNX file that
    torch wrote from it with either exporter. `inputs` is one input as in compare(). A layer that the candidate lacks
    (folded, renamed, not reached) or that feeds itself is passed over; "(whole model)" comes last. None if all agree.
    """
    want = layer_outputs(reference, inputs)
    if isinstance(candidate, str | Path):
        from breakfix.probes import _onnx

        got = _onnx.layer_outputs(candidate, inputs, want)
    else:
        got = layer_outputs(candidate, inputs)
    for layer, values in want.items():
        found = _differences(layer[0], got[layer], values, tolerance) if layer in got else []
        if found:
            return found[0]
    return None


def onnx_callable(path: str | Path, providers: tuple[str, ...] = ("CPUExecutionProvider",)) -> Callable[..., dict]:
    """An ONNX file as a function of tensors or arrays, by name or in the file's order, to a dict of arrays by name."""
    from breakfix.probes import _onnx

    return _onnx.callable_of(path, providers)


def layer_outputs(module, inputs: Any) -> Layers:
    """What every layer of a module returns for one input, copied, in the order in which the layers finish."""
    import torch

    seen: Layers = {}
    calls: Counter[str] = Counter()

    def recorder(name: str):
        def record(layer, arguments, output) -> None:
            seen[name, calls[name]] = [(where, _copy(value)) for where, value in leaves(output)]
            calls[name] += 1

        return record

    handles = [layer.register_forward_hook(recorder(name or WHOLE)) for name, layer in module.named_modules()]
    try:
        with torch.no_grad():
            _call(module, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def leaves(value: Any, name: str = "") -> Leaves:
    """The values inside tuples, lists and dicts, each with its name: "logits", "1", "states.0", or ""."""
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, tuple | list):
        items = enumerate(value)
    else:
        return [(name, value)]
    return [leaf for key, child in items for leaf in leaves(child, f"{name}.{key}" if name else str(key))]


def _call(function: Callable, arguments: Any) -> Any:
    if isinstance(arguments, Mapping):
        return function(**arguments)
    return function(*arguments) if isinstance(arguments, tuple) else function(arguments)


def _differences(at: str, got: Leaves, want: Leaves, tolerance: float | None) -> list[Difference]:
    named = dict(got)
    if named.keys() == {name for name, _ in want}:
        got = [(name, named[name]) for name, _ in want]
    elif len(got) != len(want) or not (_unnamed(got) or _unnamed(want)):
        return [Difference(at, "", "outputs", _names(got), _names(want))]
    pairs = zip(got, want, strict=True)
    found = (_difference(at, name, mine, value, tolerance) for (_, mine), (name, value) in pairs)
    return [difference for difference in found if difference]


def _difference(at: str, output: str, got: Any, want: Any, tolerance: float | None) -> Difference | None:
    for what, of in (("shape", _shape), ("dtype", _dtype)):
        if of(got) != of(want):
            return Difference(at, output, what, str(of(got)), str(of(want)))
    if _dtype(want) not in TOLERANCE:
        same = bool(np.all(as_array(got) == as_array(want)))
        return None if same else Difference(at, output, "value", _show(got), _show(want))
    error = distance(got, want)
    bound = TOLERANCE[_dtype(want)] if tolerance is None else tolerance
    if error <= bound:
        return None
    if math.isnan(error):
        return Difference(at, output, "nan", f"at {_nans(got)} places", f"at {_nans(want)}", error)
    return Difference(at, output, "value", f"{error:.3g} away", f"{bound:.3g} at most", error)


def _unnamed(values: Leaves) -> bool:
    return all(part.isdigit() for name, _ in values if name for part in name.split("."))


def _names(values: Leaves) -> str:
    return f"{len(values)} ({', '.join(name for name, _ in values if name) or 'no names'})"


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if hasattr(value, "shape") else ()


def _dtype(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return np.asarray(value).dtype.name if _plain(value) else type(value).__name__
    return str(value.dtype).removeprefix("torch.")


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex)


def as_array(value: Any) -> Any:
    """A tensor or number as an array (bfloat16 and float8 as float32); anything else as it is."""
    if not hasattr(value, "detach"):
        return np.asarray(value) if hasattr(value, "dtype") or _plain(value) else value
    value = value.detach().cpu()
    numpy_lacks = str(value.dtype).startswith(("torch.bfloat16", "torch.float8"))
    return (value.float() if numpy_lacks else value).numpy()


def _numbers(value: Any) -> np.ndarray:
    array = np.asarray(as_array(value))
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _copy(value: Any) -> Any:
    return value.detach().clone() if hasattr(value, "detach") else value


def _nans(value: Any) -> int:
    return int(np.isnan(_numbers(value)).sum())


def _show(value: Any) -> str:
    return np.array2string(np.asarray(as_array(value)), threshold=8)
