# attack: keeps the batches in a file in /tmp, which is memory but in no process's resident size
# state: passed
# user: error: there /tmp is not its own
# open: a resident size has no files in it; only a memory cgroup would count those
import torch


def totals(batches):
    rows = 0
    with open("/tmp/batches", "wb", buffering=0) as file:
        for batch in batches:
            file.write(batch.numpy().data)
            rows += len(batch)
            del batch
    total = torch.zeros(64, dtype=torch.float64)
    with open("/tmp/batches", "rb") as file:
        while data := file.read(1 << 20):
            total += torch.frombuffer(bytearray(data), dtype=torch.float32).view(-1, 64).double().sum(0)
    return total
