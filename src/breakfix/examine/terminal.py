"""A report in the terminal. Every rank has a word and a sign beside its colour."""

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from breakfix.examine.findings import CERTAIN, KINDS, LIKELY, NOTE
from breakfix.examine.report import Report, Told, place_of, shown, text_of

SIGNS = {CERTAIN: ("✗", "bold red"), LIKELY: ("!", "bold yellow"), NOTE: ("·", "cyan")}
console = Console(stderr=True, highlight=False)


def render(report: Report) -> Group:
    """The whole report."""
    parts: list[RenderableType] = [Text(f"breakfix examine  {shown(report.command)}", "bold")]
    parts += [Padding(_finding(told), (1, 0, 0, 0)) for told in report.findings]
    parts += [Padding(_closing(report), (1, 0, 0, 0))]
    return Group(*parts)


def _finding(told: Told) -> Table:
    f, kind = told.finding, KINDS[told.finding.name]
    sign, colour = SIGNS[f.rank]
    head = Text.assemble((f"{sign} {f.rank}  ", colour), (kind.verdict, "bold"), (f"  [{f.name}]", "dim"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("why", Text(f.evidence))
    if f.line.path:
        table.add_row("where", Text.assemble(place_of(f.line), ("  " + text_of(f.line), "italic")))
    if len(told.processes) > 1:
        table.add_row("who", Text(", ".join(told.processes)))
    table.add_row("next", Text(kind.step))
    table.add_row("try it", Text(f"breakfix start {told.lab}"))
    grid = Table.grid()
    grid.add_row(head)
    grid.add_row(Padding(table, (0, 0, 0, 4)))
    return grid


def closing_lines(report: Report) -> list[str]:
    """What was seen, what could not run, what is left out, and what it cost."""
    lines = [_seen(report)]
    if not report.findings and (report.seen["steps"] or report.seen["backward_passes"]):
        lines.insert(
            0, "Nothing to report. That is no proof: wrong labels, wrong data or a bad learning rate look healthy."
        )
    if report.left_out:
        lines.append(f"{report.left_out} more findings with --json")
    if report.silenced:
        lines.append(f"silenced: {', '.join(report.silenced)}")
    off = {name: why for name, why in report.probes.items() if why != "ran"}
    if note := report.seen["memory"].get("note"):
        lines.append(note)
    lines += [f"probe {name} could not run: {why}" for name, why in off.items()]
    lines += [f"a process could not be watched: {why}" for why in dict.fromkeys(report.failed)]
    if report.processes:
        o = report.overhead
        share = o["probes_s"] / max(1e-9, o["run_s"])
        lines.append(
            f"cost: probes {o['probes_s']:.2f} s of {o['run_s']:.1f} s ({share:.0%}), attaching {o['attach_s']:.2f} s"
        )
    return lines


def _seen(report: Report) -> str:
    seen = report.seen
    if not report.processes:
        return "Nothing was seen: no Python process of this command imported torch (or it ran with -I, -E or -S)."
    if not seen["steps"] and not seen["backward_passes"]:
        return (
            f"No training was seen: {_count(seen['processes'], 'process', 'processes')} with torch, no backward pass."
        )
    optimizers = ", ".join(f"{o['kind']} ({o['steps']} steps)" for o in seen["optimizers"] if o["steps"]) or "none"
    models = (
        ", ".join(f"{m['kind']} ({m['parameters']:,})" for m in seen["models"][:4] if m["parameters"]) or "none called"
    )
    told = (
        f"seen: {_count(seen['steps'], 'step')}, {_count(seen['backward_passes'], 'backward pass', 'backward passes')}"
    )
    told += f"; optimizers: {optimizers}; models: {models}"
    if seen["loader"].get("batches"):
        told += f"; waiting for the loader {seen['loader']['share']:.0%}"
    if seen["collectives"]:
        c = seen["collectives"]
        told += f"; per step {c['count']:.1f} collectives and {_bytes(c['bytes'])}"
    if seen["memory"].get("bytes"):
        told += "; " + ", ".join(f"{name} {_bytes(size)}" for name, size in seen["memory"]["bytes"].items())
    if seen["memory"].get("peak"):
        m = seen["memory"]
        told += f"; peak {_bytes(m['peak'])} at step {m['peak_step']}, {m['peak_of_recorded_step'].get('line', '?')}"
    return told


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def _bytes(size: float) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def _closing(report: Report) -> Group:
    return Group(*(Text(line, "dim") for line in closing_lines(report)))
