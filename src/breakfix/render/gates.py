"""What a gate has seen: in the terminal, and as one HTML file that asks nobody for anything."""

from collections.abc import Iterator
from html import escape

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from breakfix.gate import Finding, Latency, Report
from breakfix.render.terminal import number

MEANING = {
    "shape": "other outputs, or outputs of another shape",
    "dtype": "an output of another dtype",
    "value": "a number that is not the reference's, rounding apart",
    "raises": "the candidate raises where the reference answers",
    "input": "the candidate writes into its input",
    "memory": "tensors of past requests stay alive",
    "latency": "the typical call takes too long",
}
MIB = 2**20
WIDEST = 2.0  # the ratio at the right edge of the page's bars

STYLE = """
:root { color-scheme: light dark; --good: #2b7a4b; --bad: #b3341f; --faint: #8888; }
@media (prefers-color-scheme: dark) { :root { --good: #6cc48f; --bad: #f0836d; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.passed { color: var(--good); } .failed { color: var(--bad); } .faint { opacity: .7; }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
div.wide { overflow-x: auto; } table { border-collapse: collapse; } svg { width: 100%; min-width: 30rem; height: auto; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--faint); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
"""


def verdict_of(report: Report) -> str:
    """`✓ may go out`, or `✗ must not go out: value, memory`."""
    if report.passed:
        return "✓ may go out"
    return f"✗ must not go out: {', '.join(finding.reason for finding in report.findings)}"


def terminal(report: Report, names: tuple[str, str], conditions: str) -> Group:
    """The verdict, what was found, and what was looked at; `names` are the reference's and the candidate's."""
    colour = "green" if report.passed else "red"
    head = Text.assemble((verdict_of(report), f"bold {colour}"), f"  {names[1]}", (f" for {names[0]}", "dim"))
    parts: list[RenderableType] = [head]
    if report.findings:
        parts.append(Padding(_findings(report), (1, 2)))
    parts += [Text(line, "dim") for line in [*closing_lines(report), conditions]]
    return Group(*parts)


def _findings(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    for finding in report.findings:
        said = Text.assemble(MEANING[finding.reason], "\n", (sentence(finding), "red"))
        table.add_row(Text(f"✗ {finding.reason}", "bold red"), said)
    return table


def sentence(finding: Finding) -> str:
    """Where it was seen first and what was seen there, on one line."""
    more = f" (and {finding.count - 1} more)" if finding.count > 1 else ""
    return f"{finding.where}: {' '.join(finding.what.split())[:300]}{more}"


def closing_lines(report: Report) -> list[str]:
    """What was looked at, and what could not be seen."""
    bound = "a bound by dtype" if report.limits.tolerance is None else f"the bound {report.limits.tolerance:g}"
    answers = f"answers  {number(report.runs)} runs over {number(report.requests)} requests, against {bound}"
    return [answers, *_latency_line(report), *_memory_line(report), *(f"note     {note}" for note in report.notes)]


def _latency_line(report: Report) -> Iterator[str]:
    if report.latencies:
        worst, limits = max(report.latencies, key=lambda latency: latency.ratio), report.limits
        most = f"at most {worst.ratio:.2f} times as long, with {worst.shape}; the limit is {limits.ratio:g}"
        yield f"latency  {most}; medians of {limits.pairs} calls in turn"


def _memory_line(report: Report) -> Iterator[str]:
    first, last = report.memory[0], report.memory[-1]
    size = f"resident size {(last.resident - first.resident) / MIB:+.1f} MiB, which decides nothing"
    yield f"memory   {first.tensors} tensors after run {first.run}, {last.tensors} after run {last.run}; {size}"


# ---------------------------------------------------------------------------------------------------------------- HTML


def page(report: Report, names: tuple[str, str], conditions: str) -> str:
    """The page, readable on white and on black."""
    reference, candidate = map(escape, names)
    state = "passed" if report.passed else "failed"
    notes = "".join(f"<li>{escape(line)}</li>" for line in closing_lines(report))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>breakfix gate: {candidate}</title>'
        f'<style>{STYLE}</style>\n<h1><span class="{state}">{escape(verdict_of(report))}</span></h1>\n'
        f"<p><code>{candidate}</code> in place of <code>{reference}</code></p>\n"
        f"{_reasons(report)}\n{_times(report)}\n{_tensors(report)}\n"
        f"<ul class='faint'>{notes}<li>{escape(conditions)}</li></ul></html>\n"
    )


def _reasons(report: Report) -> str:
    found = {finding.reason: sentence(finding) for finding in report.findings}
    rows = []
    for reason, meaning in MEANING.items():
        looked = reason != "latency" or report.latencies
        state, said = ("failed", f"✗ {found[reason]}") if reason in found else ("passed", "✓ not seen")
        said = said if looked else "– not timed, as it raises"
        rows.append(f'<tr><td><b>{reason}</b><br><span class="faint">{meaning}</span></td>')
        rows.append(f'<td class="{state if looked else "faint"}">{escape(said)}</td></tr>')
    return f"<h2>What was looked for</h2><div class='wide'><table>{''.join(rows)}</table></div>"


def _times(report: Report) -> str:
    """One bar for each shape, cut off at WIDEST, with a line at the limit."""
    if not report.latencies:
        return ""
    bars = "".join(_bar(i, latency, report.limits.ratio) for i, latency in enumerate(report.latencies))
    high, limit = 26 * len(report.latencies), _x(report.limits.ratio)
    line = f'<line x1="{limit}" x2="{limit}" y1="0" y2="{high}" stroke="currentColor" stroke-dasharray="3 3"/>'
    words = f"Latency of each shape against the reference; the dashed line is the limit of {report.limits.ratio:g}"
    svg = f'<svg viewBox="0 0 900 {high}" role="img" aria-label="{escape(words)}">{bars}{line}</svg>'
    return f"<h2>Latency</h2><p class='faint'>{escape(words)}.</p><div class='wide'>{svg}</div>"


def _bar(i: int, latency: Latency, limit: float) -> str:
    holds = latency.candidate <= limit * latency.reference
    colour, sign = ("var(--good)", "✓") if holds else ("var(--bad)", "✗")
    y = 26 * i
    told = f"{sign} {latency.ratio:.2f}  {1e3 * latency.candidate:.3g} ms for {1e3 * latency.reference:.3g}"
    label = latency.shape if len(latency.shape) <= 40 else latency.shape[:39] + "…"
    return (
        f'<text x="0" y="{y + 17}" font-size="13" fill="currentColor">{escape(label)}</text>'
        f'<rect x="300" y="{y + 5}" width="{_x(latency.ratio) - 300:.1f}" height="16" fill="{colour}"/>'
        f'<text x="690" y="{y + 17}" font-size="13" fill="currentColor">{told}</text>'
    )


def _x(ratio: float) -> float:
    return 300 + 370 * min(ratio, WIDEST) / WIDEST


def _tensors(report: Report) -> str:
    head = "<tr><th class='n'>after run</th><th class='n'>tensors alive</th><th class='n'>resident MiB</th></tr>"
    rows = "".join(
        f'<tr><td class="n">{look.run}</td><td class="n">{look.tensors}</td>'
        f'<td class="n">{look.resident / MIB:.1f}</td></tr>'
        for look in report.memory
    )
    return f"<h2>Memory</h2><div class='wide'><table>{head}{rows}</table></div>"
