# attack: keeps a copy of every batch in a thread, where modes and thread-local state do not follow
# state: not measurable
import queue
import threading

import torch


def keep(jobs, kept):
    while (batch := jobs.get()) is not None:
        kept.append(batch + 0)
        del batch


def totals(batches):
    jobs, kept = queue.Queue(maxsize=1), []
    thread = threading.Thread(target=keep, args=(jobs, kept))
    thread.start()
    for batch in batches:
        jobs.put(batch)
        del batch
    jobs.put(None)
    thread.join()
    return torch.stack([batch.double().sum(0) for batch in kept]).sum(0)
