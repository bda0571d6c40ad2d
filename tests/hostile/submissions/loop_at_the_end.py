# attack: answers rightly but never ends: a thread that is waited for, in an exit handler
# state: timeout
import threading
import time

import torch

threading.Thread(target=time.sleep, args=(3600,)).start()


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    time.sleep(3600)
    return total
