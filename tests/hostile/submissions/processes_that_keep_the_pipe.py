# attack: a grandchild keeps the pipe and the log open after its parent has ended
import os
import time


def totals(batches):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    os._exit(0)
