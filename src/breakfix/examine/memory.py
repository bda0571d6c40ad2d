"""Bytes by what they are for; on CUDA also the step and line of the peak, which has not been run on a GPU yet."""

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from breakfix.examine.events import Probe
from breakfix.examine.lines import kind
from breakfix.probes import _torch

COUNTED = (2, 64)  # steps after which tensors are counted
RECORDED = 3  # the step whose allocations are recorded: state is there, and nothing new comes
ALLOCATED, FREED = ("alloc",), ("free_requested", "free")


class Memory(Probe):
    """Parameters, gradients and optimizer state are counted; the rest of a card's peak is activations."""

    name = "memory"

    def __init__(self, watch):
        super().__init__(watch)
        self.bytes: dict[str, int] = {}
        self.peak, self.peak_step, self.at = 0, 0, {}
        self.recording = False

    def step_begins(self, optimizer, line) -> None:
        if torch.cuda.is_initialized() and self.watch.steps == RECORDED - 1 and not _torch.allocations_are_recorded():
            _torch.record_allocations(True)
            self.recording = True

    def step_ended(self, optimizer, line) -> None:
        if self.watch.steps in COUNTED:
            self.bytes = _count(optimizer)
        if not torch.cuda.is_initialized():
            return
        peak = torch.cuda.max_memory_allocated()
        if peak > self.peak:
            self.peak, self.peak_step = peak, self.watch.steps
        if self.recording and self.watch.steps >= RECORDED:
            events = _torch.recorded_allocations()
            _torch.record_allocations(False)
            self.recording = False
            self.at = peak_of(events)

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {"bytes": self.bytes}
        if self.peak:
            rest = self.peak - sum(self.bytes.values())
            found |= {"peak": self.peak, "peak_step": self.peak_step, "activations_and_temporaries": max(0, rest)}
            found |= {"peak_of_recorded_step": self.at}
        elif not torch.cuda.is_available():
            found["note"] = "could not run here: the peak of memory with its step and line, on CUDA only"
        return {"memory": found}


def peak_of(trace: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Of the caching allocator's events in order: the most that came on top, and the line that asked for it."""
    now, most, line = 0, 0, ""
    live: dict[int, tuple[int, str]] = {}
    held: dict[str, int] = {}
    for event in trace:
        if event["action"] in ALLOCATED:
            at = _own(event.get("frames", ()))
            live[event["addr"]] = event["size"], at
            now += event["size"]
            if now > most:
                most, line = now, at
                held = {}
                for size, where in live.values():
                    held[where] = held.get(where, 0) + size
        elif event["action"] in FREED and event["addr"] in live:
            now -= live.pop(event["addr"])[0]
    largest = sorted(held.items(), key=lambda pair: -pair[1])[:3]
    return {"bytes": most, "line": line, "held_by_line": dict(largest)}


def _own(frames) -> str:
    for frame in frames:
        path = frame.get("filename", "")
        if path.endswith(".py") and kind(path) == "own":
            return f"{os.path.basename(path)}:{frame['line']}"
    return "?"


def _count(optimizer) -> dict[str, int]:
    held = [p for group in optimizer.param_groups for p in group["params"]]
    state = [t for values in optimizer.state.values() if isinstance(values, dict) for t in values.values()]
    return {
        "parameters": _bytes(held),
        "gradients": _bytes(p.grad for p in held if p.grad is not None),
        "optimizer state": _bytes(t for t in state if isinstance(t, Tensor)),
    }


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t.layout == torch.strided)
