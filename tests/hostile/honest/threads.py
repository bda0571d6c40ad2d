# honest: the sum in a thread, and a print without a newline
import threading

import torch


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)

    def work():
        for batch in batches:
            total.add_(batch.sum(0, dtype=torch.float64))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print("done", end="")
    return total
