"""A report as one HTML file that asks nobody for anything: findings, and a timeline of the steps as SVG."""

from html import escape
from typing import Any

from breakfix.examine.findings import KINDS
from breakfix.examine.report import Report, Told, place_of, shown, text_of
from breakfix.examine.terminal import SIGNS, closing_lines

PHASES = {"load": ("waiting for data", "#c2571a"), "rest": ("forward and the rest", "#7a8b99")}
PHASES |= {"backward": ("backward", "#2f6f9f"), "step": ("optimizer", "#5b8c3e")}
WIDTH, HEIGHT, MOST = 900, 160, 200  # of the timeline, and the steps it has room for

STYLE = """
:root { color-scheme: light dark; --faint: #8888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
article { border-left: .3rem solid var(--faint); padding: .1rem 1rem; margin: 1rem 0; }
article.certain { border-color: #c0392b; } article.likely { border-color: #d68910; }
article.note { border-color: #2e86ab; }
h1 { font-size: 1.2rem; } h2 { font-size: 1rem; margin: .3rem 0; } dt { float: left; width: 4.5rem; opacity: .7; }
dd { margin-left: 5rem; } code { font-family: ui-monospace, monospace; } svg { width: 100%; height: auto; }
li { opacity: .8; } .name { opacity: .6; font-weight: normal; }
"""


def html(report: Report) -> str:
    """The page."""
    findings = "\n".join(map(_article, report.findings))
    closing = "\n".join(f"<li>{escape(line)}</li>" for line in closing_lines(report))
    timelines = "\n".join(_timeline(p) for p in report.processes[:8] if p["timeline_ms"])
    title = escape(shown(report.command))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>breakfix examine {title}</title>'
        f"<style>{STYLE}</style><h1>breakfix examine <code>{title}</code></h1>\n"
        f"{findings}\n{timelines}\n<ul>{closing}</ul></html>\n"
    )


def _article(told: Told) -> str:
    f, kind = told.finding, KINDS[told.finding.name]
    sign = SIGNS[f.rank][0]
    rows = [("why", escape(f.evidence))]
    if f.line.path:
        rows.append(("where", f"{escape(place_of(f.line))} <code>{escape(text_of(f.line))}</code>"))
    if len(told.processes) > 1:
        rows.append(("who", escape(", ".join(told.processes))))
    rows += [("next", escape(kind.step)), ("try it", f"<code>breakfix start {told.lab}</code>")]
    items = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    head = f'{sign} {f.rank}: {escape(kind.verdict)} <span class="name">{f.name}</span>'
    return f'<article class="{f.rank}"><h2>{head}</h2><dl>{items}</dl></article>'


def _timeline(process: dict[str, Any]) -> str:
    """One bar per step, its phases stacked; the tallest twentieth is cut off, as first steps are far longer."""
    steps = process["timeline_ms"][:MOST]
    whole = sorted(sum(step.values()) for step in steps)
    top = whole[int(0.95 * (len(whole) - 1))] or 1.0
    wide = WIDTH / len(steps)
    bars = "".join(_bar(i, step, wide, top) for i, step in enumerate(steps))
    legend = "".join(
        f'<rect x="{i * 200}" y="{HEIGHT + 12}" width="12" height="12" fill="{colour}"/>'
        f'<text x="{i * 200 + 18}" y="{HEIGHT + 23}" font-size="13" fill="currentColor">{name}</text>'
        for i, (name, colour) in enumerate(PHASES.values())
    )
    who = f"rank {process['rank']}" if process["rank"] is not None else f"process {process['pid']}"
    head = f"{who}: the first {len(steps)} steps, up to {top:.2f} ms each, on the host"
    return f'<h2>{escape(head)}</h2><svg viewBox="0 0 {WIDTH} {HEIGHT + 30}" role="img">{bars}{legend}</svg>'


def _bar(i: int, step: dict[str, float], wide: float, top: float) -> str:
    parts, below = [], 0.0
    for phase, (name, colour) in PHASES.items():
        high = min(step[phase] / top * HEIGHT, HEIGHT - below)
        below += high
        place = f'x="{i * wide:.2f}" y="{HEIGHT - below:.2f}" width="{max(0.5, wide - 0.5):.2f}" height="{high:.2f}"'
        parts.append(f'<rect {place} fill="{colour}"><title>step {i + 1}, {name}: {step[phase]} ms</title></rect>')
    return "".join(parts)
