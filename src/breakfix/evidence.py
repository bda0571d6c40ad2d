"""Evidence: what one measurement of a subject produced, by name.

A frame is the form in which it leaves the subject's process: a JSON header and raw bytes. It is never a pickle, because
whoever reads it must not run what the subject wrote.

    b"BFX1" | header length, 4 bytes, little endian | header, JSON | the arrays' bytes, one after another
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

MAGIC = b"BFX1"
LIMIT = 4 << 20  # bytes of one frame: a gradebook keeps thousands of them
DTYPES = frozenset(["bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"])

Evidence = Mapping[str, Any]


class BadFrame(Exception):
    """The bytes are not a frame; the message says why."""


class TooLarge(Exception):
    """The evidence is larger than a frame may be; the message names its largest parts."""


def encode(evidence: Evidence) -> bytes:
    """The frame of `evidence`: numbers, strings, lists, dicts, arrays and tensors. Raises TypeError, TooLarge."""
    header, arrays = {}, []
    for name, value in evidence.items():
        value = _as_array_or_plain(name, value)
        if isinstance(value, np.ndarray):
            header[name] = {"dtype": value.dtype.name, "shape": list(value.shape)}
            arrays.append(value)
        else:
            header[name] = {"value": _finite_json(name, value)}
    head = json.dumps(header, allow_nan=False).encode()
    size = 8 + len(head) + sum(array.nbytes for array in arrays)
    if size > LIMIT:  # before anything is copied
        raise TooLarge(f"the evidence has {size} bytes, at most {LIMIT}: send samples. {_largest(header)}")
    return b"".join([MAGIC, len(head).to_bytes(4, "little"), head, *(array.tobytes() for array in arrays)])


def decode(frame: bytes) -> dict[str, Any]:
    """The evidence in `frame`, its arrays read-only. Raises BadFrame on anything but a whole, well-formed frame."""
    try:
        return _decode(frame)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, MemoryError) as error:
        raise BadFrame(f"not an evidence frame: {type(error).__name__}: {error}") from None


def _decode(frame: bytes) -> dict[str, Any]:
    if frame[:4] != MAGIC or len(frame) > LIMIT:
        raise ValueError(f"starts with {frame[:4]!r}, has {len(frame)} bytes")
    start = 8 + int.from_bytes(frame[4:8], "little")
    evidence, offset = {}, start
    for name, entry in json.loads(frame[8:start]).items():
        if "value" in entry:
            evidence[name] = _plain(entry["value"])
        else:
            evidence[name], offset = _array(frame, offset, entry)
    if offset != len(frame):
        raise ValueError(f"{len(frame) - offset} bytes left over")
    return evidence


def _array(frame: bytes, offset: int, entry: dict) -> tuple[np.ndarray, int]:
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"dtype {entry['dtype']!r}")
    dtype, shape = np.dtype(entry["dtype"]), entry["shape"]
    if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 32:
        raise ValueError(f"shape {shape!r}")
    count = math.prod(shape)
    if offset + count * dtype.itemsize > len(frame):
        raise ValueError("the arrays are cut short")
    flat = np.frombuffer(frame, dtype, count, offset)  # a view of bytes: read-only
    if dtype.kind == "b" and (flat.view(np.uint8) > 1).any():  # such a bool is neither true nor false to NumPy
        raise ValueError("a bool that is neither 0 nor 1")
    return flat.reshape(shape), offset + flat.nbytes


def _as_array_or_plain(name: str, value: Any) -> Any:
    if not isinstance(name, str):
        raise TypeError(f"evidence is named by strings, not by {name!r}")
    if hasattr(value, "detach"):  # a tensor; torch itself is not needed to read evidence
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.name not in DTYPES:
        raise TypeError(f"evidence {name!r} has dtype {value.dtype}; may be one of {', '.join(sorted(DTYPES))}")
    return np.asarray(value, dtype=value.dtype.newbyteorder("="))  # its name does not say the order of its bytes


def _finite_json(name: str, value: Any) -> Any:
    """JSON has no nan and inf: they travel as {"float": "nan"}."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": float.__repr__(value)}
    if isinstance(value, list | tuple):
        return [_finite_json(name, v) for v in value]
    if isinstance(value, dict):
        return {"dict": {str(k): _finite_json(name, v) for k, v in value.items()}}
    raise TypeError(f"evidence {name!r} is a {type(value).__name__}; wanted a number, string, list, dict or array")


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return float(value["float"]) if "float" in value else {k: _plain(v) for k, v in value["dict"].items()}
    return value


def _largest(header: dict[str, dict]) -> str:
    sizes = sorted(((_size(entry), name) for name, entry in header.items()), reverse=True)[:3]
    return "Largest: " + ", ".join(f"{name} ({size} bytes)" for size, name in sizes)


def _size(entry: dict) -> int:
    if "value" in entry:
        return len(json.dumps(entry["value"]))
    return math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize
