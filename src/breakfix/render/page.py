"""One HTML page in one file: its style inside, nothing loaded from anywhere, light and dark as the reader's system is.

Whatever comes from outside goes through `text`; a page has no script, and says so to the browser.
"""

import html

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
:root { color-scheme: light dark; --line: #c8c8c8; --soft: #f2f2f2; --mark: #fff0c2; --good: #1b6e3c; --bad: #a8321f; }
@media (prefers-color-scheme: dark) {
  :root { --line: #4a4a4a; --soft: #262626; --mark: #4d3f10; --good: #6fce95; --bad: #ff9d85; }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem 1.2rem 3rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--line); } h3 { margin-bottom: .2rem; }
table { border-collapse: collapse; margin: .6rem 0; } th, td { padding: .25rem .7rem; text-align: left; }
th, td { border-bottom: 1px solid var(--line); vertical-align: top; } .n { text-align: right; white-space: nowrap; }
.wide { overflow-x: auto; } .good { color: var(--good); } .bad { color: var(--bad); } .dim { opacity: .75; }
pre { background: var(--soft); padding: .6rem; overflow-x: auto; margin: 0; font: 13px/1.45 ui-monospace, monospace; }
pre.wrap { white-space: pre-wrap; overflow-wrap: anywhere; }
mark { background: var(--mark); color: inherit; } .pair { display: grid; grid-template-columns: 1fr 1fr; gap: .6rem; }
.pair > * { min-width: 0; } figure { margin: 1rem 0; overflow-x: auto; max-width: 52rem; }
svg.lab-figure { display: block; width: 100%; min-width: 30rem; height: auto; }
@media (max-width: 45em) { .pair { grid-template-columns: 1fr; } }
summary { cursor: pointer; }
"""


def document(title: str, body: str) -> str:
    """A whole page; `body` is HTML already, `title` is not."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{text(title)}</title><style>{STYLE}</style>"
    )
    heading = f"<h1>{text(title)}</h1>"
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{heading}\n{body}\n</body>\n</html>\n'


def text(words: object) -> str:
    """Somebody's words as HTML that shows them and does nothing: no markup, no control or direction characters."""
    return html.escape("".join(map(_visible, str(words))), quote=True)


def table(head: list[str], rows: list[list[str]], numbers: int = 0) -> str:
    """A table; its cells are HTML already, the last `numbers` columns hold numbers."""
    first = len(head) - numbers
    lines = [_row("th", head, first), *(_row("td", row, first) for row in rows)]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>\n'


def _row(tag: str, cells: list[str], first: int) -> str:
    return "<tr>" + "".join(f"<{tag}{' class=n' * (i >= first)}>{c}</{tag}>" for i, c in enumerate(cells)) + "</tr>"


def _visible(character: str) -> str:
    return character if character.isprintable() or character in "\n\t" else "\ufffd"
