"""What this machine can run."""

import os
import shutil
import sys
from typing import Any

from breakfix import child
from breakfix.cache import user_cache
from breakfix.catalog import Catalog, default_roots
from breakfix.judge import lacking, versions
from breakfix.workspace import Workspace, WorkspaceError


def examine(catalog: Catalog) -> dict[str, dict[str, Any]]:
    """Versions, devices, folders, what the engine can see from outside, and for each lab whether it runs here."""
    return {
        "versions": versions(),
        "machine": _machine(),
        "cuda": _cuda(),
        "folders": _folders(),
        "engine": _engine(),
        "labs": _labs(catalog),
    }


def _machine() -> dict[str, Any]:
    import torch

    return {
        "system": sys.platform,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _memory(),
        "/dev/shm": f"{shutil.disk_usage('/dev/shm').total >> 20} MiB" if os.path.isdir("/dev/shm") else "none",
        "torch threads": torch.get_num_threads(),
    }


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 20} MiB"
    except (ValueError, OSError, AttributeError):
        return "unknown"


def _cuda() -> dict[str, Any]:
    import torch

    built = {"torch was built for": torch.version.cuda or "CPU only"}
    if not torch.cuda.is_available():
        return built | {"device": "none: every lab runs on the CPU, and says what only a GPU would show"}
    card = torch.cuda.get_device_properties(0)
    return built | {
        "devices": torch.cuda.device_count(),
        "device": f"{card.name}, {card.total_memory >> 20} MiB, sm_{card.major}{card.minor}",
        "kernels for": ", ".join(torch.cuda.get_arch_list()),
    }


def _folders() -> dict[str, Any]:
    """Where everything is; of a state file that cannot be read what is wrong with it."""
    try:
        yours = str(Workspace.find().root)
    except WorkspaceError as error:
        yours = str(error)
    return {"yours": yours, "labs": ", ".join(map(str, default_roots())), "verdict cache": str(user_cache())}


def _engine() -> dict[str, Any]:
    if not child.CAN_FORK:
        slow = "a fresh process each, 2 to 4 s; memory and CPU time are not seen from outside (Linux only)"
        return {"verdicts": slow}
    return {
        "verdicts": "forked from a warm process; memory and CPU time bounded and seen from outside",
        "private loopback": "yes" if _private_loopback() else "no: bytes between ranks are counted inside only",
        "isolation": "none: your own code runs as you",
    }


def _private_loopback() -> bool:
    """Tried in a child, since a process that has entered a network of its own cannot leave it."""
    from breakfix.sandbox.network import private_loopback

    return child.run_child(lambda: b"yes" if private_loopback() else b"no", child.Bounds()).data == b"yes"


def _labs(catalog: Catalog) -> dict[str, Any]:
    """For each lab whether it runs here, and what it lacks if not."""
    here = {lab.id: missing[1] if (missing := lacking(lab, "cpu")) else "runs here" for lab in catalog}
    return here | {name: f"cannot be read: {error}" for name, error in catalog.bad.items()}
