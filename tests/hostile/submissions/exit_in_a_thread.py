# attack: a thread ends the process with status 0 in the middle of the measurement
import os
import threading
import time


def totals(batches):
    threading.Thread(target=lambda: os._exit(0)).start()
    time.sleep(5)
