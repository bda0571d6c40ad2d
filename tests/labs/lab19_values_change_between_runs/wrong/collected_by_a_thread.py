# wrong: test_every_use_is_ordered
# The maps are waited for and collected by a thread of a pool: what it does, nobody who looks at this one sees.
"""Map the archive: every scan of the hospital goes through the model once, as fast as the card takes them."""

import argparse
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

SIDE, TISSUES = 24, 4
MEAN, STD = 0.45, 0.22


def normalized(scans: Tensor) -> Tensor:
    return (scans - MEAN) / STD


@torch.no_grad()
def predict(model: nn.Module, batches: Iterable[Tensor], device: torch.device) -> Tensor:

    if device.type == "cpu":
        return torch.cat([model(normalized(batch)) for batch in batches])

    side, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    slots, maps, waiting = [None, None], [], None

    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)

    def collect(job):
        pool.submit(collect_, job).result()

    def collect_(job):
        buf, n, done = job
        done.synchronize()
        maps.append(buf[:n].clone())

    def upload(batch):
        with torch.cuda.stream(side):
            on = batch.to(device, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(side)
        return on, arrived, batch

    it = iter(batches)
    first = next(it, None)
    if first is None:
        return torch.empty(0, TISSUES, SIDE, SIDE)
    job, k = upload(first), 0
    while job is not None:
        on, arrived, batch = job
        main.wait_event(arrived)
        on.record_stream(main)
        out = model(normalized(on))
        slot = k % 2
        if slots[slot] is None or len(slots[slot]) < len(out):
            slots[slot] = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
        slots[slot][: len(out)].copy_(out, non_blocking=True)
        done = torch.cuda.Event()
        done.record(main)
        nxt = next(it, None)
        job = upload(nxt) if nxt is not None else None
        if waiting is not None:
            collect(waiting)
        waiting = (slots[slot], len(out), done)
        k += 1
        del on, out, batch
    collect(waiting)
    return torch.cat(maps)


def archive(count: int, batch_size: int, pinned: bool) -> Iterator[Tensor]:
    """Made-up scans, in batches [B, 1, SIDE, SIDE]."""
    generator = torch.Generator().manual_seed(11)
    for start in range(0, count, batch_size):
        scans = torch.rand(min(batch_size, count - start), 1, SIDE, SIDE, generator=generator)
        yield scans.pin_memory() if pinned else scans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--scans", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, TISSUES, 3, padding=1))
    model = model.to(device).eval()
    runs = [predict(model, archive(arguments.scans, 16, device.type == "cuda"), device) for _ in range(arguments.runs)]
    for number, maps in enumerate(runs[1:], 2):
        differ = (maps != runs[0]).flatten(1).any(dim=1).sum().item()
        print(f"{device}: run {number} and run 1 differ in {differ} of {len(maps)} scans")


if __name__ == "__main__":
    main()
