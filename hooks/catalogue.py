"""Makes docs/labs/index.md: the table of all labs, and the map of which lab builds on which. Neither shows a cause."""

import json
from pathlib import Path

import jinja2
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from track_map import draw

from breakfix.catalog import Catalog, Lab

NEEDS = {
    "cuda": "a CUDA GPU", "onnx": "the onnx extra", "serve": "the serve extra", "quantize": "the quantize extra",
    "fork": "Linux",
}  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    labs = complete_labs(root_of(config))
    files.append(File.generated(config, "labs/index.md", content=page(labs)))
    return files


def page(labs: list[Lab]) -> str:
    """The page, as Markdown."""
    return _template().render(labs=labs, needs=needs, recorded=recorded, map=draw(labs))


def needs(lab: Lab) -> str:
    """What a lab needs, in words."""
    words = [NEEDS.get(need) or f"{need.partition(':')[2]} processes" for need in lab.needs]
    return ", ".join(words) or "a CPU is enough"


def recorded(lab: Lab) -> str:
    """The GPUs of which records/ keeps a run."""
    paths = sorted((lab.root / "records").glob(f"{lab.id}.cuda*.json"))
    return ", ".join(dict.fromkeys(json.loads(path.read_text("utf-8"))["device_name"] for path in paths)) or "not yet"


def complete_labs(root: Path) -> list[Lab]:
    """The labs that have all the files that pages are made of."""
    return [lab for lab in Catalog.read(root) if not missing(lab)]


def missing(lab: Lab) -> list[str]:
    """The files that a lab lacks for its pages."""
    parts = (lab.path / "README.md", lab.starter, lab.path / "measure.py", lab.checks_path)
    solution = (lab.solution, lab.solution_path / "README.md")
    return [str(path.relative_to(lab.root)) for path in (*parts, *solution) if not path.is_file()]


def root_of(config: MkDocsConfig) -> Path:
    """The folder of mkdocs.yml."""
    return Path(config.config_file_path).parent


def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    strict = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return jinja2.Environment(loader=loader, keep_trailing_newline=True, **strict).get_template("labs.md.jinja")
