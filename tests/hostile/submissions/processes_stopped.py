# attack: a child that is stopped, and a parent that waits for it
# state: timeout
import os
import signal


def totals(batches):
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(pid, 0)
