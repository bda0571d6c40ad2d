"""Puts assets/symptoms-index.js into the site: what `breakfix symptom` has learnt, for the same search in a browser."""

import json
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from breakfix.catalog import Catalog
from breakfix.symptoms import Index

NAME = "assets/symptoms-index.js"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """A script and not a JSON file: a page that is opened from a disk may not fetch one."""
    catalog = Catalog.read(Path(config.config_file_path).parent)
    found = Index.of(catalog).to_json() | {
        "labs": {
            lab.path.name: {"title": f"{lab.id} {lab.title}", "href": f"../labs/{lab.id}/index.html"} for lab in catalog
        }
    }
    script = f"window.breakfixSymptoms = {json.dumps(found, ensure_ascii=False)};\n"
    files.append(File.generated(config, NAME, content=script))
    return files
