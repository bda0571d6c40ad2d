# attack: lets short-lived children do the work, unseen because their end is ignored
# state: timeout
import os
import signal
import time

signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def totals(batches):
    while True:
        if os.fork() == 0:
            end = time.process_time() + 0.1
            while time.process_time() < end:
                pass
            os._exit(0)
        time.sleep(0.05)
