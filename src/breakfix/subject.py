"""The subject's side: load one file under its real path, measure it, hand over a frame or the learner's traceback."""

import io
import json
import linecache
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import decode_source, find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from breakfix import evidence, sandbox
from breakfix.catalog import Lab, read_lab
from breakfix.contract import Contract

EVIDENCE, TROUBLE, TOO_LARGE = b"E", b"X", b"L"  # the first byte of what a subject's process sends


class NotPython(Exception):
    """The subject's file is not Python text; the message says why."""


@dataclass(frozen=True)
class Job:
    """One subject of one lab, to be measured at one seed on one device. Its source is sent along: nothing is copied."""

    lab_path: Path
    source: bytes
    path: str
    seed: int
    device: str = "cpu"
    isolation: str = sandbox.NONE

    @property
    def lab(self) -> Lab:
        return _lab(self.lab_path)

    @classmethod
    def of_file(cls, lab: Lab, path: Path, seed: int, device: str = "cpu") -> "Job":
        """The job for the file at `path`. Raises OSError where it cannot be read."""
        return cls(lab.path, Path(path).read_bytes(), str(Path(path).absolute()), seed, device)

    def to_bytes(self) -> bytes:
        """One line of JSON, then the source."""
        head = {k: v for k, v in vars(self).items() if k != "source"} | {"lab_path": str(self.lab_path)}
        return json.dumps(head).encode() + b"\n" + self.source

    @classmethod
    def from_bytes(cls, data: bytes) -> "Job":
        """The job that `to_bytes` wrote."""
        head, _, source = data.partition(b"\n")
        fields = json.loads(head)
        return cls(Path(fields.pop("lab_path")), source, **fields)


_lab = lru_cache(read_lab)


def measure(job: Job) -> dict[str, Any]:
    """Measure in this process, where a debugger can follow; the evidence as the checks would see it."""
    return evidence.decode(evidence.encode(_measure(load(job.source, job.path), job)))


def measure_to_bytes(job: Job) -> bytes:
    """Measure, and return a tagged frame, or a tagged text that says what went wrong in the learner's own lines."""
    try:
        return EVIDENCE + evidence.encode(_measure(load(job.source, job.path), job))
    except evidence.TooLarge as error:
        return TOO_LARGE + str(error).encode(errors="replace")[: evidence.LIMIT]
    except BaseException as error:  # SystemExit and KeyboardInterrupt of a subject too
        return TROUBLE + own_words(error, job.path).encode(errors="replace")[: evidence.LIMIT]


def measure_idle(job: Job) -> bytes:
    """Measure the lab's own subject that does nothing: what the measurement itself uses."""
    _measure(job.lab.measurement.IDLE, job)
    return b""


def load(source: bytes, path: str) -> ModuleType:
    """The module that `source` makes, importable under the name of its file, its lines known to tracebacks."""
    text = _text(source, path)
    name = Path(path).stem
    module = ModuleType(f"subject_{name}" if _is_taken(name, path) else name)
    module.__file__ = path
    sys.modules[module.__name__] = module  # loader workers and pickle look it up by name
    linecache.cache[path] = (len(text), None, io.StringIO(text).readlines(), path)
    exec(compile(text, path, "exec"), module.__dict__)
    return module


def _is_taken(name: str, path: str) -> bool:
    """Whether somebody else's module goes by that name: the file may be called random.py, or torchmetrics.py."""
    if name in sys.modules:
        return True
    with suppress(ImportError, ValueError):  # what could not be imported by this name cannot be hidden by it
        spec = find_spec(name)
        return spec is not None and spec.origin != path
    return False


def _text(source: bytes, path: str) -> str:
    """The source as Python itself reads it: a byte order mark, a coding line and any line ending are fine."""
    try:
        text = decode_source(source)
    except UnicodeDecodeError as error:
        raise NotPython(
            f"{path} is not a text file in {error.encoding}: {error.reason} at byte {error.start}"
        ) from None
    except SyntaxError as error:
        raise NotPython(f"{path} is not a text file: {error.msg}") from None
    if "\0" in text:
        raise NotPython(f"{path} is not a text file: it has a null byte at character {text.index(chr(0))}")
    return text


def own_words(error: BaseException, path: str) -> str:
    """The traceback from the learner's file on; of a contract breach its message; else the whole traceback."""
    if isinstance(error, Contract):
        return f"Contract: {error}"
    if isinstance(error, NotPython):
        return str(error)
    frames = getattr(error, "frames", None) or traceback.extract_tb(error.__traceback__)  # RankFailed brings the rank's
    first = next(
        (i for i, f in enumerate(frames) if f.filename == path), 0 if not isinstance(error, SyntaxError) else None
    )
    shown = frames[first:] if first is not None else []
    head = "Traceback (most recent call last):\n" if shown else ""
    return head + "".join(traceback.format_list(shown) + traceback.format_exception_only(error)).rstrip()


def _measure(subject: Any, job: Job) -> dict[str, Any]:
    import torch

    return job.lab.measurement.measure(subject, job.seed, torch.device(job.device))
