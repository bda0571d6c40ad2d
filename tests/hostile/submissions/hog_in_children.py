# attack: takes memory in many children, little in each
# state: out of memory, timeout
import os
import time


def totals(batches):
    for _ in range(16):
        if os.fork() == 0:
            kept = b"1" * (128 << 20)
            time.sleep(3600 if kept else 0)
    time.sleep(3600)
