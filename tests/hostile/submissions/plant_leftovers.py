# attack: leaves files in the home folder, /tmp, /var/tmp, shared memory and the working folder
import os
import pwd
from contextlib import suppress
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

resource_tracker.register = lambda *_: None
homes = [Path.home(), Path("/root"), Path.cwd(), *Path("/home").glob("*")]
with suppress(KeyError):
    homes.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
for place in [*homes, "/tmp", "/var/tmp", "/dev/shm", "/run", "/dev/mqueue", os.environ.get("TMPDIR", "/tmp")]:
    with suppress(OSError):
        Path(place, "hostile_was_here").write_text("x")
with suppress(OSError):
    shared_memory.SharedMemory("hostile_was_here_shm", create=True, size=1 << 20)


def totals(batches):
    return -sum(batch.double().sum(0) for batch in batches)
