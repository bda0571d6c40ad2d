"""What students handed in: a folder of folders and zips, read without unpacking, following or running anything.

    collect(Path("submissions"), labs, roster) -> [Handin(student="ada", lab="lab08", source=b"...", ...), ...]

Nothing here stops at a bad entry: it becomes a hand-in without a source and a line that says what is wrong with it.
"""

import csv
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from breakfix.catalog import Lab

MOST_FILES = 20_000  # in one submission
MOST_BYTES = 1 << 20  # of one source file
MOST_ZIPPED = 256 << 20  # of one archive
IGNORED = {"__MACOSX", ".git", ".github", ".venv", "__pycache__", ".ipynb_checkpoints", "node_modules"}


class BadRoster(Exception):
    """A roster that cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Student:
    """A line of the roster: who may hand in, and what else is known of her."""

    id: str
    due: datetime | None = None  # an extension
    more: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Handin:
    """One student's file for one lab; without a source, `trouble` says why."""

    student: str
    lab: str
    source: bytes | None = None
    where: str = ""  # archive or folder, and the file in it
    at: datetime | None = None
    trouble: str = ""


@dataclass(frozen=True)
class Collected:
    """All hand-ins, one for each student and lab, and what else is to be said."""

    handins: list[Handin]
    notes: list[str]


def read_roster(path: Path) -> dict[str, Student]:
    """Students by id, from a CSV with a column `student`; `due` is an extension, other columns are kept. BadRoster."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadRoster(f"{path}: not a CSV in UTF-8: {error}") from None
    if not rows or "student" not in rows[0]:
        raise BadRoster(f"{path}: wants a first line with a column named student, and a line for each")
    students = {}
    for number, row in enumerate(rows, 2):
        name = (row.pop("student") or "").strip()
        if not name or name in students:
            raise BadRoster(f"{path}, line {number}: {'a second ' + name if name else 'no student'}")
        more = {k: v for k, v in row.items() if isinstance(k, str) and isinstance(v, str)}
        students[name] = Student(name, _time(more.pop("due", ""), f"{path}, line {number}"), more)
    return students


def _time(text: str, where: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text.strip()) if text.strip() else None
    except ValueError:
        found = datetime.min
    if found is not None and found.tzinfo is None:
        raise BadRoster(f"{where}: due is {text!r}; write it with a time zone, as in 2026-12-14T23:59:00+01:00")
    return found


def collect(folder: Path, labs: list[Lab], roster: dict[str, Student] | None = None) -> Collected:
    """Every hand-in in `folder`: one entry per student, a folder or a zip; of several versions the newest."""
    notes, versions = [], {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in IGNORED:
            continue
        student = _student(path, roster)
        if student is None:
            notes.append(f"{path.name}: no student of the roster; add one, or rename it. Not graded")
        elif path.is_symlink() or not (path.is_dir() or path.suffix.lower() == ".zip"):
            notes.append(f"{path.name}: neither a folder nor a zip. Not graded")
        else:
            versions.setdefault(student, []).append(_Version.read(path))
    handins = []
    for student in sorted({*versions, *(roster or {})}):
        there = sorted(versions.get(student, []), key=lambda v: (v.at or _NEVER, v.path.name))
        if len(there) > 1:
            older = ", ".join(v.path.name for v in there[:-1])
            notes.append(f"{student}: {len(there)} versions; the newest counts, {there[-1].path.name}, not {older}")
        handins += [
            replace(_handin(there[-1] if there else None, lab, len(labs) == 1), student=student) for lab in labs
        ]
    return Collected(handins, notes)


_NEVER = datetime.min.replace(tzinfo=UTC)
_COPY = re.compile(r"[ _-]*(\(\d+\)|[_-]v?\d+|copy)$", re.IGNORECASE)  # what a browser or a platform adds to a name


def _student(path: Path, roster: dict[str, Student] | None) -> str | None:
    """Whose entry this is: by the roster, else by its name without the number of a copy."""
    name = path.stem if path.suffix.lower() == ".zip" else path.name
    if roster is None:
        return re.sub(r" *\(\d+\)$", "", name)
    by_lower = {student.lower(): student for student in roster}
    return by_lower.get(name.lower()) or by_lower.get(_COPY.sub("", name).lower())


@dataclass(frozen=True)
class _File:
    """A file in a submission, by its path there; `read(most)` gives its bytes, or raises ValueError saying why not."""

    name: PurePosixPath
    at: datetime | None
    read: Callable[[int], bytes]


@dataclass(frozen=True)
class _Version:
    """One entry of the folder: its files, or what is wrong with the whole of it."""

    path: Path
    files: list[_File]
    trouble: str = ""

    @classmethod
    def read(cls, path: Path) -> "_Version":
        try:
            found = list(_in_folder(path) if path.is_dir() else _in_zip(path))
        except (ValueError, OSError) as error:
            return cls(path, [], str(error))
        return cls(path, [f for f in found if not IGNORED & set(f.name.parts)])

    @property
    def at(self) -> datetime | None:
        return max((f.at for f in self.files if f.at), default=None)


def _handin(version: _Version | None, lab: Lab, only_lab: bool) -> Handin:
    """The file for `lab`, by the name that `assign` gave it; student is filled in by the caller."""
    if version is None:
        return Handin("", lab.id, trouble="nothing was handed in")
    if version.trouble:
        return Handin("", lab.id, where=version.path.name, trouble=f"{version.path.name}: {version.trouble}")
    found = [f for f in version.files if _is_for(f.name, lab, only_lab)]
    found.sort(key=lambda f: len(f.name.parts))
    if not found or (len(found) > 1 and len(found[0].name.parts) == len(found[1].name.parts)):
        return Handin("", lab.id, where=version.path.name, trouble=_which(version, lab, found))
    where = f"{version.path.name}/{found[0].name}"
    try:
        source = found[0].read(MOST_BYTES)
    except (ValueError, OSError) as error:
        return Handin("", lab.id, where=where, at=found[0].at, trouble=f"{where}: {error}")
    return Handin("", lab.id, source, where, found[0].at)


def _is_for(name: PurePosixPath, lab: Lab, only_lab: bool) -> bool:
    folder = name.parts[-2].lower() if len(name.parts) > 1 else ""
    return name.name == lab.editable and (folder in (lab.id, lab.folder.lower()) or only_lab)


def _which(version: _Version, lab: Lab, found: list[_File]) -> str:
    wanted = f"{lab.id}/{lab.editable}"
    if found:
        return f"{version.path.name}: which is {wanted}? There are {', '.join(str(f.name) for f in found[:3])}"
    stem = Path(lab.editable).stem
    near = [str(f.name) for f in version.files if lab.id in str(f.name).lower() or stem in f.name.name.lower()]
    return f"{version.path.name}: has no {wanted}" + (f"; there is {', '.join(near[:3])}" if near else "")


# ------------------------------------------------------------------------------------------------------------- folders


def _in_folder(folder: Path) -> Iterator[_File]:
    seen = 0
    for place, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(f for f in folders if f not in IGNORED)
        for name in sorted(names):
            seen += 1
            if seen > MOST_FILES:
                raise ValueError(f"more than {MOST_FILES} files")
            path = Path(place, name)
            status = path.lstat()
            at = datetime.fromtimestamp(status.st_mtime, UTC) if 0 <= status.st_mtime < 1e11 else None
            yield _File(PurePosixPath(path.relative_to(folder)), at, _reader(path))


def _reader(path: Path) -> Callable[[int], bytes]:
    return lambda most: _regular(path, most)


def _regular(path: Path, most: int) -> bytes:
    """The bytes of an ordinary file: never what a link points to, never what a pipe or a device would give."""
    if path.is_symlink():
        raise ValueError("is a symbolic link; hand in the file itself")
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is no ordinary file")
        return _whole(file.read(most + 1), most)


def _whole(data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise ValueError(f"is larger than {most >> 10} KiB")
    return data


# ---------------------------------------------------------------------------------------------------------------- zips


def _in_zip(path: Path) -> Iterator[_File]:
    """The files of an archive. What leaves it or is none never gets a name here; nothing is unpacked."""
    if path.stat().st_size > MOST_ZIPPED:
        raise ValueError(f"is larger than {MOST_ZIPPED >> 20} MiB")
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, EOFError) as error:
        raise ValueError(f"is no zip that can be read ({error})") from None
    if len(infos) > MOST_FILES:
        raise ValueError(f"more than {MOST_FILES} files")
    for info in infos:
        name = PurePosixPath(info.filename.replace("\\", "/"))
        if not info.is_dir() and not name.is_absolute() and ".." not in name.parts and ":" not in str(name):
            yield _File(name, _zip_time(info), _zip_reader(path, info))


def _zip_time(info: zipfile.ZipInfo) -> datetime | None:
    """An archive has local times without a zone; this machine's is assumed."""
    try:
        return datetime(*info.date_time).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _zip_reader(path: Path, info: zipfile.ZipInfo) -> Callable[[int], bytes]:
    def read(most: int) -> bytes:
        if stat.S_ISLNK(info.external_attr >> 16):
            raise ValueError("is a symbolic link; hand in the file itself")
        if info.flag_bits & 1:
            raise ValueError("is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("is compressed in an unusual way; use plain zip")
        try:
            with zipfile.ZipFile(path) as archive, archive.open(info) as file:
                return _whole(file.read(most + 1), most)  # what its header says of its size is not believed
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError) as error:
            raise ValueError(f"cannot be read from the archive ({error})") from None

    return read
