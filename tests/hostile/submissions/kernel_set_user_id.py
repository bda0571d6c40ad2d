# attack: becomes root: by setuid, by programs with a set-user-id bit, and by one of its own
import glob
import os
import shutil
import subprocess
from contextlib import suppress

import torch


def worked():
    for call in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0), lambda: os.setgroups([0])):
        with suppress(OSError):
            call()
            return True
    with suppress(OSError):
        shutil.copy("/usr/bin/id", "/tmp/id")
        os.chmod("/tmp/id", 0o6755)
    for program in ("/tmp/id", *glob.glob("/usr/bin/su"), *glob.glob("/usr/bin/sudo")):
        arguments = (
            ["-u"] if program == "/tmp/id" else ["-c", "id -u"] if program.endswith("su") else ["-n", "id", "-u"]
        )
        done = subprocess.run([program, *arguments], capture_output=True, stdin=subprocess.DEVNULL, timeout=5)
        if done.stdout.strip() == b"0":
            return True
    return False


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
