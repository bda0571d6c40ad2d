"""What an ONNX file computes, as a whole and layer by layer: torch's exporters leave the module's name in each node."""

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from breakfix.probes.parity import WHOLE, Layers, Leaves, as_array

SCOPES = "pkg.torch.onnx.name_scopes"  # a note in each node: "['', 'blocks.0', 'blocks.0.norm', 'add']"


def callable_of(path: str | Path, providers: Iterable[str]) -> Callable[..., dict[str, np.ndarray]]:
    """The file as a function of tensors or arrays, by name or in the file's order, to a dict of arrays."""
    session = _need("onnxruntime").InferenceSession(str(path), providers=list(providers))
    return lambda *arguments, **named: _run(session, [*zip(_inputs(session), arguments, strict=False), *named.items()])


def layer_outputs(path: str | Path, inputs: Any, want: Layers) -> Layers:
    """For one input, what the file computes where the layers of `want` end, as far as it shows them."""
    model = _need("onnx").load(str(path))
    names = list(dict.fromkeys(layer for layer, _ in want))
    outputs = [value.name for value in model.graph.output]
    ends = {**_ends(model.graph, names), WHOLE: outputs}
    for value in sorted({value for values in ends.values() for value in values}.difference(outputs)):
        model.graph.output.add(name=value)  # the runtime infers its type
    session = _need("onnxruntime").InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = _run(session, _named(inputs, _inputs(session)))
    found: Layers = {}
    for name in names:
        calls = {layer: leaves for layer, leaves in want.items() if layer[0] == name}
        found |= _pair([values[value] for value in ends[name]], calls)
    return found


def _need(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"reading an ONNX file needs {name}: pip install 'breakfix[onnx]'") from error


def _inputs(session: Any) -> list[str]:
    return [value.name for value in session.get_inputs()]


def _named(inputs: Any, names: list[str]) -> list[tuple[str, Any]]:
    if isinstance(inputs, Mapping):
        return [*inputs.items()] if inputs.keys() == set(names) else [*zip(names, inputs.values(), strict=True)]
    return [*zip(names, inputs if isinstance(inputs, tuple) else (inputs,), strict=True)]


def _run(session: Any, feed: Iterable[tuple[str, Any]]) -> dict[str, np.ndarray]:
    outputs = [value.name for value in session.get_outputs()]
    values = session.run(None, {name: np.asarray(as_array(value)) for name, value in feed})
    return dict(zip(outputs, values, strict=True))


def _ends(graph: Any, names: list[str]) -> dict[str, list[str]]:
    """The values that each layer's nodes compute and that something outside the layer reads."""
    layers = [_enclosing(node, names) for node in graph.node]
    readers: dict[str, list[set[str]]] = defaultdict(list)
    for node, inside in zip(graph.node, layers, strict=True):
        for value in _reads(node):
            readers[value].append(inside)
    for value in graph.output:
        readers[value.name].append(set())
    ends: dict[str, list[str]] = {name: [] for name in names}
    for node, inside in zip(graph.node, layers, strict=True):
        for name in inside:
            ends[name] += [value for value in node.output if any(name not in reader for reader in readers[value])]
    return ends


def _reads(node: Any) -> list[str]:
    """What a node reads, the branches and bodies inside it included."""
    inner = [graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs)]
    return [*node.input, *(value for graph in inner for child in graph.node for value in _reads(child))]


def _enclosing(node: Any, names: list[str]) -> set[str]:
    """The layers that a node lies in, by the default exporter's note or else by its path, as in /blocks.0/norm/Add."""
    note = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), None)
    if note is not None:
        return set(ast.literal_eval(note)).intersection(names)
    inside, at = set(), ""
    for part in node.name.split("/")[1:-1]:
        once = re.sub(r"_\d+$", "", part)  # the second call of `shared` is /shared_1/
        at = _child(at, part, names) or _child(at, once, names) or at
        inside.add(at)
    return inside


def _child(at: str, part: str, names: list[str]) -> str:
    """The layer inside `at` that the old exporter calls `part`: "net.1" in "blocks.0.net" is "blocks.0.net.1"."""
    below = [name for name in names if name.startswith(f"{at}." if at else "") and f".{name}".endswith(f".{part}")]
    return min(below, key=len, default="")


def _pair(values: list[np.ndarray], calls: Layers) -> Layers:
    """Values of a layer in the file to what it returned, call by call; nothing where it is not clear which is which."""
    kinds = {as_array(value).dtype.kind for leaves in calls.values() for _, value in leaves if hasattr(value, "dtype")}
    values = [value for value in values if value.dtype.kind in kinds]  # shapes and indices leave a layer too
    if len(calls) == 1 and len(next(iter(calls.values()))) == 1:
        values = values[-1:]
    if len(values) != sum(map(len, calls.values())):
        return {}
    left = iter(values)
    found: dict[tuple[str, int], Leaves] = {}
    for layer, leaves in calls.items():
        found[layer] = [(name, next(left)) for name, _ in leaves]
    return found
