"""What an instructor hands out: the files that students change, and nothing that would answer for them."""

import zipfile
from pathlib import Path

from breakfix.catalog import Lab
from breakfix.grading.assignment import Assignment
from breakfix.workspace import given_files

STUDENTS, SPECIFICATION = "students", "assignment.toml"
README = """# {title}

{due}
| lab | what you see | the file to fix | points |
|---|---|---|---:|
{rows}

## Begin

```console
$ python -m pip install breakfix
$ cd {first}
$ breakfix run       # measures your file
$ breakfix check     # has it judged, on inputs of its own
$ breakfix hint
```

Each folder has a README with the task. Change only the file that it names. Your grade comes from other inputs than
those that `breakfix check` draws, and from the same checks.

## Hand in

This folder as it is: as a repository, a folder or a zip, with the files under the names that they have.
"""


class InTheWay(Exception):
    """Something is already there; the message says what."""


def write(assignment: Assignment, labs: list[Lab], folder: Path) -> list[Path]:
    """Write `folder`/students (a template repository), the same as a zip, and the instructor's assignment.toml.

    Raises InTheWay rather than overwrite anything.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InTheWay(f"{folder} is not empty; name another folder")
    content = _for_students(assignment, labs)
    for name, data in content.items():
        path = folder / STUDENTS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    archive = folder / f"{STUDENTS}.zip"
    with zipfile.ZipFile(archive, "x", zipfile.ZIP_DEFLATED) as file:
        for name, data in content.items():
            file.writestr(name, data)
    specification = folder / SPECIFICATION
    specification.write_text(assignment.to_toml(with_key=True), "utf-8")
    return [specification, folder / STUDENTS, archive]


def _for_students(assignment: Assignment, labs: list[Lab]) -> dict[str, bytes]:
    files = {"README.md": _readme(assignment, labs).encode(), ".gitignore": b"__pycache__/\n.venv/\nbreakfix.json\n"}
    files[SPECIFICATION] = assignment.to_toml(with_key=False).encode()
    for lab in labs:
        files |= {f"{lab.id}/{name}": data for name, data in given_files(lab).items()}
    return files


def _readme(assignment: Assignment, labs: list[Lab]) -> str:
    rows = [f"| {lab.id} | {lab.title} | {lab.id}/{lab.editable} | {assignment.points[lab.id]} |" for lab in labs]
    due = f"Due: {assignment.due.isoformat(sep=' ', timespec='minutes')}\n" if assignment.due else ""
    return README.format(title=assignment.title, due=due, rows="\n".join(rows), first=labs[0].id)
