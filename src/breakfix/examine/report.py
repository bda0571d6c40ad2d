"""One report from the records of all processes: what was found, what was seen, which probes could not run."""

import linecache
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from breakfix.examine.findings import CERTAIN, KINDS, LIKELY, RANKS, Finding, finding_of
from breakfix.examine.launch import Run
from breakfix.examine.lines import Line

MOST = 10  # findings
SILENCED_BY = re.compile(r"#\s*breakfix:\s*ok\s+([\w\-, ]+)")
VARIABLE = "BREAKFIX_SILENCE"  # names with commas between
ORDER = {name: place for place, name in enumerate(KINDS)}


@dataclass
class Told:
    """A finding, in how many processes, and what the table says of its kind."""

    finding: Finding
    processes: list[str] = field(default_factory=list)

    @property
    def lab(self) -> str:
        """Where it can be tried."""
        return self.finding.lab or KINDS[self.finding.name].lab

    def to_json(self) -> dict[str, Any]:
        """With the verdict, the lab and the next step."""
        f, kind = self.finding, KINDS[self.finding.name]
        line = {"file": f.line.path, "line": f.line.number, "function": f.line.function, "text": text_of(f.line)}
        return {
            "name": f.name, "rank": f.rank, "verdict": kind.verdict, "evidence": f.evidence, "figures": f.figures,
            "at": line if f.line.path else None, "lab": self.lab, "next": kind.step, "first_step": f.step,
            "processes": self.processes,
        }  # fmt: skip


@dataclass
class Report:
    """What `breakfix examine` has to say."""

    command: list[str]
    code: int
    findings: list[Told]
    silenced: list[str]
    left_out: int  # findings beyond the most that are told
    seen: dict[str, Any]
    probes: dict[str, str]  # by name: "ran", or why not
    overhead: dict[str, float]
    processes: list[dict[str, Any]]
    failed: list[str]

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {
            "command": self.command, "exit_code": self.code, "findings": [t.to_json() for t in self.findings],
            "left_out": self.left_out, "silenced": self.silenced, "seen": self.seen, "probes": self.probes,
            "overhead": self.overhead, "processes": self.processes, "failed": self.failed,
        }  # fmt: skip


def report_of(run: Run, command: Sequence[str], silence: Iterable[str] = ()) -> Report:
    """Merge the records, leave out what is silenced, and put the most certain first."""
    told = _merged(run.records)
    quiet = {name.strip() for name in [*silence, *os.environ.get(VARIABLE, "").split(",")] if name.strip()}
    kept = [t for t in told if t.finding.name not in quiet and not _silenced_in_file(t.finding)]
    silenced = [t.finding.name for t in told if t not in kept]
    kept.sort(key=lambda t: (RANKS.index(t.finding.rank), ORDER[t.finding.name]))
    return Report(
        list(command), run.code, kept[:MOST], silenced, max(0, len(kept) - MOST), _seen(run.records),
        _probes(run.records), _overhead(run), [_process(r) for r in run.records], run.failed,
    )  # fmt: skip


def text_of(line: Line) -> str:
    """The source of a line, where the file can be read."""
    return linecache.getline(line.path, line.number).strip() if line.path else ""


def place_of(line: Line) -> str:
    """As "train.py:32 in fit", the path from here if the file lies below."""
    if not line.path:
        return ""
    path = os.path.relpath(line.path) if os.path.isabs(line.path) and not _elsewhere(line.path) else line.path
    return f"{path}:{line.number}" + (f" in {line.function}" if line.function and line.function != "<module>" else "")


def who(record: dict[str, Any]) -> str:
    """ "rank 1", or "process 4711"."""
    return f"rank {record['rank']}" if record["rank"] is not None else f"process {record['pid']}"


def worth(report: Report) -> list[Told]:
    """The findings that are more than a note."""
    return [t for t in report.findings if t.finding.rank in (CERTAIN, LIKELY)]


def shown(command: Sequence[str]) -> str:
    """The command as one types it."""
    return shlex.join(command)


def _elsewhere(path: str) -> bool:
    try:
        return os.path.relpath(path).startswith("..")
    except ValueError:  # on another drive
        return True


def _merged(records: list[dict[str, Any]]) -> list[Told]:
    found: dict[tuple, Told] = {}
    for record in sorted(records, key=lambda r: (str(r["rank"]), r["pid"])):
        for data in record["findings"]:
            finding = finding_of(data)
            told = found.setdefault((finding.name, finding.line), Told(finding))
            if RANKS.index(finding.rank) < RANKS.index(told.finding.rank):
                told.finding = finding
            if who(record) not in told.processes:
                told.processes.append(who(record))
    if parting := _parting(records):
        found[("ranks-differ", None)] = Told(parting, ["all ranks"])
    return list(found.values())


def _parting(records: list[dict[str, Any]]) -> Finding | None:
    """The first collective of the default group that the ranks of one run did not all call alike."""
    runs: dict[tuple, list] = {}
    for record in records:
        if record["rank"] is not None and "collectives" in record["figures"]:
            runs.setdefault((record["parent"], record.get("world")), []).append(record)
    alone = (ranks for ranks in runs.values() if len({r["rank"] for r in ranks}) == len(ranks))
    return next(filter(None, map(_parting_of, alone)), None)


def _parting_of(ranks: list[dict[str, Any]]) -> Finding | None:
    calls = [r["figures"]["collectives"]["default_group"] for r in ranks]
    for number in sorted({int(n) for each in calls for n in each}):
        here = [each.get(str(number)) for each in calls]
        went_on = all(here) or any(int(n) > number for each in calls for n in each)
        if len({call and call[0] for call in here}) > 1 and went_on:
            said = "; ".join(
                f"rank {r['rank']}: {call[1] if call else 'nothing'}" for r, call in zip(ranks, here, strict=True)
            )
            return Finding("ranks-differ", CERTAIN, f"collective {number} of the default group: {said}")
    return None


def _silenced_in_file(finding: Finding) -> bool:
    """By `# breakfix: ok NAME` at the end of the finding's line, or on a line of its own for the whole file."""
    for number, text in enumerate(linecache.getlines(finding.line.path), 1) if finding.line.path else ():
        match = SILENCED_BY.search(text)
        named = match and finding.name in re.split(r"[,\s]+", match[1].strip())
        if named and (text.lstrip().startswith("#") or number == finding.line.number):
            return True
    return False


def _seen(records: list[dict[str, Any]]) -> dict[str, Any]:
    figures = [r["figures"] for r in records]
    return {
        "processes": len(records),
        "steps": max((r["steps"] for r in records), default=0),
        "backward_passes": max((r["backwards"] for r in records), default=0),
        "optimizers": max((f.get("optimizers", []) for f in figures), key=len, default=[]),
        "models": max((f.get("models", []) for f in figures), key=len, default=[]),
        "loader": max((f.get("loader", {}) for f in figures), key=lambda x: x.get("batches", 0), default={}),
        "reads": max((f.get("reads", {}) for f in figures), key=lambda x: x.get("count", 0), default={}),
        "compile": max((f.get("compile", {}) for f in figures), key=lambda x: x.get("compilations", 0), default={}),
        "memory": next((f["memory"] for f in figures if f.get("memory", {}).get("bytes")), {}),
        "collectives": next(
            (
                {k: v for k, v in f["collectives"].items() if k != "default_group"}
                for f in figures
                if "collectives" in f
            ),
            {},
        ),
        "crash": next((r["crash"] for r in records if r["crash"]), None),
    }


def _probes(records: list[dict[str, Any]]) -> dict[str, str]:
    probes: dict[str, str] = {}
    for record in records:
        for name, state in record["probes"].items():
            if probes.get(name, "ran") == "ran":
                probes[name] = state
    return probes


def _overhead(run: Run) -> dict[str, float]:
    """Of the process in which the probes took longest: their own seconds, against the rest of its time."""
    slowest = max(run.records, key=lambda r: r["seconds"] + r["attached_in"], default=None)
    if slowest is None:
        return {"attach_s": 0.0, "probes_s": 0.0, "run_s": run.wall}
    return {"attach_s": slowest["attached_in"], "probes_s": slowest["seconds"], "run_s": run.wall}


def _process(record: dict[str, Any]) -> dict[str, Any]:
    kept = ("pid", "parent", "rank", "argv", "torch", "python", "steps", "backwards", "seconds", "attached_in", "wall")
    return {key: record[key] for key in kept} | {"timeline_ms": record["figures"].get("timeline_ms", [])}
