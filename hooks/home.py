"""Puts a lab's figure into the home page, broken beside fixed, from a run: <!-- figure: lab05 -->."""

import re
from pathlib import Path

import lab_runs
from catalogue import root_of
from lab_pages import conditions, figure
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from breakfix.catalog import Catalog, Lab
from breakfix.zygote import Engine

MARKER = re.compile(r"<!-- figure: (lab\d\d) -->")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw what index.md asks for."""
    if page.file.src_uri != "index.md":
        return markdown
    root = root_of(config)
    return MARKER.sub(lambda found: drawn(Catalog.read(root)[found[1]], root / ".cache" / "runs"), markdown)


def drawn(lab: Lab, folder: Path) -> str:
    """The figure of the lab's run and where it comes from, as HTML; the run is made now if none is kept."""
    run = lab_runs.kept(lab, folder)
    if run is None:
        with Engine() as engine:
            run = lab_runs.make(lab, engine, folder)
    if not run.ran:
        return f"The figure of {lab.id} is left out: what the lab needs was not there."
    return f'{figure(lab, run)}\n<p class="from">A run of both files: {conditions(run)}</p>'
