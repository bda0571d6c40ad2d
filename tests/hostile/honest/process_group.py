# honest: a process group of gloo over the loopback, with a store on a TCP port
import torch
import torch.distributed as dist


def totals(batches):
    store = dist.TCPStore("localhost", 0, 1, is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        part = batch.sum(0, dtype=torch.float64)
        dist.all_reduce(part)
        total += part
    dist.destroy_process_group()
    return total
