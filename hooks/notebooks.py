"""Runs the walkthroughs, as many at a time as there are cores; mkdocs-jupyter renders what came out.

It could run them itself, but only one after the other, and it would keep an old result when a lab changes: it looks at
the text of the notebook alone. Here a result is kept until that text, its lab, the engine, or what draws figures has
changed. A cell that raises ends the build. The half megabyte of style in every rendered notebook goes into one file.
"""

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext
import nbformat
from lab_runs import run_code
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from breakfix import render
from breakfix.cache import digest
from breakfix.catalog import Catalog

FOLDER = "walkthroughs"
CELL_SECONDS = 300
LARGE = 2000  # characters of style that are worth a file
STYLE = re.compile(r"<style[^>]*>(.*?)</style>", re.S)
MATHJAX = re.compile(r"<script[^>]*>(?:(?!</script>).)*MathJax(?:(?!</script>).)*</script>", re.S)
REMOTE_SCRIPT = re.compile(r"<script[^>]*src=\"https?://[^>]*></script>")

_styles: dict[str, str] = {}  # by the name of the file that they go to


@event_priority(100)  # before mkdocs-jupyter asks which files are notebooks
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put an executed notebook in the place of every walkthrough."""
    root = Path(config.config_file_path).parent
    sources = [file for file in files if re.fullmatch(rf"{FOLDER}/\w+\.py", file.src_uri)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = list(pool.map(lambda source: executed(Path(source.abs_src_path), root), sources))
    for source, folder in zip(sources, made, strict=True):
        files.remove(source)
        notebook = source.src_uri.replace(".py", ".ipynb")
        files.append(File(notebook, str(folder), config.site_dir, config.use_directory_urls))
    return files


def executed(source: Path, root: Path) -> Path:
    """The folder that holds walkthroughs/NAME.ipynb, made from `source` now or, if nothing has changed, before."""
    folder = root / ".cache" / "notebooks" / f"{source.stem}-{_key(source, root)}"
    notebook = folder / FOLDER / f"{source.stem}.ipynb"
    if not notebook.exists():
        text = nbformat.writes(_run(source))
        for old in folder.parent.glob(f"{source.stem}-*"):
            shutil.rmtree(old)
        notebook.parent.mkdir(parents=True)
        notebook.write_text(text, "utf-8")
    return folder


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Take the large styles out of a notebook's page, and what asks other servers for scripts."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    html = STYLE.sub(lambda style: _link(style[1], page) if len(style[1]) > LARGE else style[0], html)
    return REMOTE_SCRIPT.sub("", MATHJAX.sub("", html))


def on_post_build(config: MkDocsConfig) -> None:
    """Write the style files."""
    for name, text in _styles.items():
        path = Path(config.site_dir, "assets", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def _run(source: Path) -> nbformat.NotebookNode:
    notebook = jupytext.read(source)
    place = {"metadata": {"path": str(source.parent)}}
    client = NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=place, record_timing=False)
    try:
        return client.execute(env=os.environ | {"OMP_NUM_THREADS": "1"})
    except CellExecutionError as error:
        raise PluginError(f"{source.name} failed:\n{error}") from None


def _key(source: Path, root: Path) -> str:
    """Changes with the text of the notebook, its lab, the engine, their versions, and what draws figures and tables."""
    labs = Catalog.read(root) if (root / "labs").is_dir() else ()
    codes = [run_code(lab).encode() for lab in labs if lab.id == source.stem and lab.checks_path.is_file()]
    drawing = sorted(Path(render.__file__).parent.glob("*.py"))
    return digest(source.read_bytes(), *codes, *(path.read_bytes() for path in drawing))


def _link(style: str, page: Page) -> str:
    name = f"notebook-{digest(style.encode())[:12]}.css"
    _styles[name] = style
    up = "../" * page.url.count("/")
    return f'<link rel="stylesheet" href="{up}assets/{name}">'
