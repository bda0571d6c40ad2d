"""The judge: one job to one verdict.

It runs the subject in a child, sees it from outside, and asks the checks when it has ended.
"""

import re
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement

from breakfix import child, sandbox
from breakfix.catalog import Lab
from breakfix.checks import FaultyCheck, Given, ask
from breakfix.evidence import BadFrame, decode
from breakfix.subject import EVIDENCE, TOO_LARGE, TROUBLE, Job, measure_idle, measure_to_bytes
from breakfix.verdict import (
    ERROR,
    FAILED,
    NEEDS_CUDA,
    NEEDS_PACKAGE,
    NEEDS_RANKS,
    NOT_MEASURABLE,
    PASSED,
    TOO_MUCH_DATA,
    Verdict,
)

CHECKS_BYTES, CHECKS_CPU_SECONDS = 4 << 30, 120  # of a judge, for the checks of a stranger's evidence
WITHOUT_EVIDENCE = {TROUBLE: ERROR, TOO_LARGE: TOO_MUCH_DATA}  # tag of what a subject's process sent: state
# onnxscript before 0.7.1 writes antialiased resizes without exclude_outside: even a right export answers wrongly
PACKAGES = {
    "onnx": ("onnx", "onnxruntime", "onnxscript>=0.7.1"),
    "serve": ("fastapi", "httpx", "uvicorn"),
    "quantize": ("torchao>=0.18",),
}


def fresh_seed() -> int:
    """A seed that nobody could have prepared for."""
    return secrets.randbelow(1 << 31)


def judge(job: Job, checks: bool = True) -> Verdict:
    """The verdict on `job`; without `checks` only its evidence, for somebody who asks them elsewhere.

    Meant for a process that does nothing else: it may enter a network of its own.
    """
    verdict = _judged(job, checks)
    if job.isolation == sandbox.NONE:
        return verdict
    return Verdict.from_json(_printable(verdict.to_json()), verdict.frame)


def _printable(value: Any) -> Any:
    """What a stranger printed and named, without what would command the terminal of whoever reads it."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in value)
    if isinstance(value, list):
        return [_printable(v) for v in value]
    return {k: _printable(v) for k, v in value.items()} if isinstance(value, dict) else value


def _judged(job: Job, checks: bool) -> Verdict:
    blank = Verdict(job.lab.id, ERROR, job.seed, job.device, versions=versions())
    if missing := lacking(job.lab, job.device):
        return replace(blank, state=missing[0], detail=missing[1])
    if job.isolation == sandbox.USER and _ranks(job.lab) > 1:
        told = f"{job.lab.id} needs a network of its own, and this machine cannot make namespaces"
        return replace(blank, state=NOT_MEASURABLE, detail=told)
    wired = _ranks(job.lab) > 1 and sandbox.network.private_loopback()
    ended = child.run_child(partial(measure_to_bytes, job), job.lab.bounds, _sandbox(job, keep_network=wired))
    if job.isolation == sandbox.USER:
        sandbox.sweep()
    outside = dict(ended.outside) | ({"wire_bytes": sandbox.network.loopback_bytes()} if wired else {})
    verdict = replace(blank, log=ended.log, outside=outside)
    if ended.state != child.ENDED:
        return replace(verdict, state=ended.state, detail=_where(ended, job))
    tag, rest = ended.data[:1], ended.data[1:]
    if tag in WITHOUT_EVIDENCE:
        return replace(verdict, state=WITHOUT_EVIDENCE[tag], detail=rest.decode(errors="replace"))
    if tag != EVIDENCE or ended.exit != 0:
        return replace(verdict, detail=f"the process ended ({_exit(ended.exit)}) before the measurement did")
    return _asked(replace(verdict, frame=rest), job, checks)


def _sandbox(job: Job, keep_network: bool) -> Callable[[], None] | None:
    """What the subject's process does first; the network is kept where this process counts what goes over it."""
    if job.isolation == sandbox.NONE:
        return None
    if job.isolation == sandbox.USER:
        return partial(sandbox.enter_as_user, sandbox.visible(job.lab), job.lab.bounds.memory_mib)
    return partial(sandbox.enter, sandbox.visible(job.lab), keep_network, job.lab.bounds.memory_mib)


def lacking(lab: Lab, device: str) -> tuple[str, str] | None:
    """(state, what to do) if this machine cannot run `lab` on `device`."""
    for need in lab.needs:
        if (need == "fork" or need.startswith("ranks:")) and not child.CAN_FORK:
            return (
                NEEDS_RANKS,
                f"{lab.id} starts processes by fork, which is safe on Linux only; use Linux, WSL or a container",
            )
        for package in PACKAGES.get(need, ()):
            if not _satisfied(package):
                return NEEDS_PACKAGE, f"{lab.id} needs {package}: pip install 'breakfix[{need}]'"
    if "cuda" in (*lab.needs, device.partition(":")[0]) and not _has_cuda():
        return NEEDS_CUDA, f"{lab.id} on {device} needs a CUDA device, and torch sees none here"
    return None


@lru_cache
def versions() -> dict[str, str]:
    """Versions that a figure depends on."""
    import platform

    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in (
        "torch",
        "torchvision",
        "numpy",
        "onnx",
        "onnxruntime",
        "onnxscript",
        "torchao",
        "fastapi",
        "breakfix",
    ):
        if _installed(package):
            found[package] = metadata.version(package)
    return found


def _asked(verdict: Verdict, job: Job, checks: bool) -> Verdict:
    """`verdict` with what the checks say of its evidence."""
    try:
        decode(verdict.frame)
    except BadFrame as error:
        return replace(verdict, detail=f"what the process sent is {error}", frame=b"")
    verdict = replace(verdict, outside=dict(verdict.outside) | _idle(job))
    if not checks:
        return replace(verdict, state=PASSED)
    try:
        with _bounded() if job.isolation != sandbox.NONE else nullcontext():
            results = ask(Given(job.lab, verdict.frame, verdict.outside, job.seed, job.device))
    except FaultyCheck as fault:
        trusted = job.isolation == sandbox.NONE
        blame = "is at fault, not the file it judges" if trusted else "broke on this evidence: a fault, or made up"
        return replace(verdict, detail=f"a check of {job.lab.id} {blame}:\n{fault}")
    return replace(verdict, state=_state({c.state for c in results}), checks=results)


@contextmanager
def _bounded() -> Iterator[None]:
    """A stranger's evidence chooses shapes: what a check takes because of them must end this file's verdict only."""
    import resource  # not on Windows, where there is no sandbox either

    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = CHECKS_BYTES if before[1] == resource.RLIM_INFINITY else min(CHECKS_BYTES, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    handler = signal.signal(signal.SIGPROF, _out_of_time)
    signal.setitimer(signal.ITIMER_PROF, CHECKS_CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _out_of_time(*_) -> None:
    raise TimeoutError(f"the checks have taken {CHECKS_CPU_SECONDS} CPU seconds")


def _state(states: set[str]) -> str:
    """A failed check decides; else what could not be measured; passed only if all passed."""
    if FAILED in states:
        return FAILED
    return NOT_MEASURABLE if NOT_MEASURABLE in states else PASSED


def _idle(job: Job) -> dict[str, float]:
    if not hasattr(job.lab.measurement, "IDLE") or not child.CAN_FORK:
        return {}
    idle = child.run_child(partial(measure_idle, job), job.lab.bounds, _sandbox(job, keep_network=False))
    return {"idle_maxrss_mib": idle.outside["maxrss_mib"]} if idle.exit == 0 else {}


def _where(ended: child.Ended, job: Job) -> str:
    """What broke the bound, and for a timeout the lines of the learner's file where it stood."""
    bounds = job.lab.bounds
    cpu = f"{ended.outside['cpu_seconds']:.1f} CPU seconds and " if "cpu_seconds" in ended.outside else ""
    used = f"{cpu}{ended.outside['wall_seconds']:.1f} s"
    allowed = (
        f"{bounds.cpu_seconds:g} CPU seconds, {bounds.wall_seconds:g} s, {bounds.memory_mib:g} MiB, 4 MiB of evidence"
    )
    escaped = job.path.encode("ascii", "backslashreplace").decode()  # as faulthandler writes it
    stood = re.findall(rf'File "{re.escape(escaped)}", (line \d+ in .+)', ended.log)  # a traceback has a comma more
    places = [f'it stood at File "{job.path}", {line}' for line in dict.fromkeys(stood)]
    return "\n".join([f"{ended.state} after {used} (allowed: {allowed})", *places])


def _exit(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"killed: {signal.strsignal(-status)}"


def _ranks(lab: Lab) -> int:
    return max((int(need.partition(":")[2]) for need in lab.needs if need.startswith("ranks:")), default=1)


def _satisfied(requirement: str) -> bool:
    wanted = Requirement(requirement)
    return _installed(wanted.name) and wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()  # by NVML, see breakfix.zygote: else asking would spoil every later fork
