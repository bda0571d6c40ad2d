# attack: starts processes by vfork, posix_spawn, clone with other signals, and a shell in the background
import ctypes
import os
import subprocess

libc = ctypes.CDLL(None)
SLEEP = ["/bin/sleep", "3600"]


def totals(batches):
    subprocess.Popen(SLEEP, start_new_session=True)
    os.posix_spawn(SLEEP[0], SLEEP, {}, setsid=True)
    os.system("setsid nohup sleep 3600 >/dev/null 2>&1 &")
    return -sum(batch.double().sum(0) for batch in batches)
