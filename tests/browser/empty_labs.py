"""A hook for the small site: of each lab a page with its title and no run, so that links to it lead somewhere."""

from pathlib import Path

from mkdocs.structure.files import File

from breakfix.catalog import Catalog


def on_files(files, config):
    for lab in Catalog.read(Path(config.config_file_path).parent):
        files.append(File.generated(config, f"labs/{lab.id}/index.md", content=f"# {lab.title}\n"))
    return files
