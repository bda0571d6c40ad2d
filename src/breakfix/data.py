"""Small real data, each set a folder of datasets/ with a card.toml: of a checkout, or carried by the wheel."""

import hashlib
import tomllib
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent
_CARRIED = _PACKAGE / "content" / "datasets"
ROOT = _CARRIED if _CARRIED.is_dir() else _PACKAGE.parents[1] / "datasets"


def names() -> list[str]:
    """The data sets that there are."""
    return sorted(path.parent.name for path in ROOT.glob("*/card.toml"))


def folder(name: str) -> Path:
    """The folder of data set `name`. Raises LookupError, and says which there are."""
    if name not in names():
        raise LookupError(f"there is no data set {name!r}; there are {', '.join(names()) or 'none'}")
    return ROOT / name


def card(name: str) -> dict[str, Any]:
    """What the card of data set `name` says: title, how it was built, and a table for each file."""
    return tomllib.loads((folder(name) / "card.toml").read_text("utf-8"))


def files(name: str) -> dict[str, Path]:
    """The files of data set `name`, by their names, in the card's order."""
    here = folder(name)
    return {entry["name"]: here / entry["name"] for entry in card(name)["file"]}


def checksum(path: Path) -> str:
    """The SHA-256 of a file, as a card states it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
