"""What mkdocs-jupyter leaves to do: run a notebook again when what it imports has changed, and keep its page small."""

import os
import re
import shutil
from pathlib import Path

from lab_runs import run_code
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from breakfix import render
from breakfix.cache import digest
from breakfix.catalog import Catalog

KEPT_CACHES = 3
LARGE_STYLE = re.compile(r"<style[^>]*>(.{2000,}?)</style>", re.S)
MATHJAX = re.compile(r"<script[^>]*>(?:(?!</script>).)*MathJax(?:(?!</script>).)*</script>", re.S)
REMOTE_SCRIPT = re.compile(r"<script[^>]*src=\"https?://[^>]*></script>")

_styles: dict[str, str] = {}  # by the name of the file that they go to


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the folder of outputs after all code that notebooks may run: mkdocs-jupyter looks at their text alone."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    root = Path(config.config_file_path).parent
    caches = root / ".cache" / "notebooks"
    config.plugins["mkdocs-jupyter"].config["cache_dir"] = str(caches / _key(root))
    _styles.clear()
    return config


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Move a notebook's half megabyte of style into one file for all, and drop what asks other servers for scripts."""
    if not page.file.src_uri.endswith(".py"):
        return html
    html = LARGE_STYLE.sub(lambda style: _link(style[1], page), html)
    return REMOTE_SCRIPT.sub("", MATHJAX.sub("", html))


def on_post_build(config: MkDocsConfig) -> None:
    """Write the style files, and delete the oldest outputs."""
    for name, text in _styles.items():
        path = Path(config.site_dir, "assets", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    caches = Path(config.plugins["mkdocs-jupyter"].config["cache_dir"]).parent
    for old in sorted(caches.glob("*"), key=lambda p: p.stat().st_mtime, reverse=True)[KEPT_CACHES:]:
        shutil.rmtree(old)


def _key(root: Path) -> str:
    """Changes with any lab, the engine, the versions of what they import, and with what draws figures and tables."""
    drawing = sorted(Path(render.__file__).parent.glob("*.py"))
    labs = [run_code(lab).encode() for lab in Catalog.read(root) if lab.checks_path.is_file()]
    return digest(*labs, *(path.read_bytes() for path in drawing))


def _link(style: str, page: Page) -> str:
    name = f"notebook-{digest(style.encode())[:12]}.css"
    _styles[name] = style
    up = "../" * page.url.count("/")
    return f'<link rel="stylesheet" href="{up}assets/{name}">'
