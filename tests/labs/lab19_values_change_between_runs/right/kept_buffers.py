# right: Two buffers on the card and two in pinned memory, filled in turn, an event for each: no allocation after the first batches, and sizes must be known.
"""Map the archive: every scan of the hospital goes through the model once, as fast as the card takes them."""

import argparse
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

SIDE, TISSUES = 24, 4
MEAN, STD = 0.45, 0.22


def normalized(scans: Tensor) -> Tensor:
    return (scans - MEAN) / STD


class Ring:
    """Two places for batches, used in turn; each knows when it may be filled again."""

    def __init__(self, like: Tensor, **where) -> None:
        self.places = [torch.empty_like(like, **where) for _ in range(2)]
        self.free = [torch.cuda.Event() for _ in range(2)]


@torch.no_grad()
def predict(model: nn.Module, batches: Iterable[Tensor], device: torch.device) -> Tensor:
    """The model's maps of all scans, [N, TISSUES, SIDE, SIDE] on the CPU; the batches are in pinned memory."""
    if device.type == "cpu":
        return torch.cat([model(normalized(batch)) for batch in batches])
    side, work = torch.cuda.Stream(device), torch.cuda.current_stream()
    there, ring, out, maps, coming = [torch.cuda.Event() for _ in range(2)], None, None, [], None
    sent = []
    for number, batch in enumerate(batches):
        ring = ring or Ring(batch, device=device)
        k = number % 2
        with torch.cuda.stream(side):
            side.wait_event(ring.free[k])
            ring.places[k][: len(batch)].copy_(batch, non_blocking=True)
            there[k].record(side)
        sent.append((k, len(batch)))
        if len(sent) == 2:
            out, coming = step(model, ring, there, out, sent.pop(0), work, maps, coming)
    while sent:
        out, coming = step(model, ring, there, out, sent.pop(0), work, maps, coming)
    if coming is not None:
        coming[0].synchronize()
        maps.append(coming[1].clone())
    return torch.cat(maps)


def step(model, ring, there, out, place, work, maps, coming):
    """Work on the batch in a place of the ring, and take the maps of the one before."""
    k, size = place
    work.wait_event(there[k])
    found = model(normalized(ring.places[k][:size]))
    ring.free[k].record(work)
    out = out or Ring(found, device="cpu", pin_memory=True)
    host = out.places[k][:size]
    host.copy_(found, non_blocking=True)
    done = work.record_event()
    if coming is not None:
        coming[0].synchronize()
        maps.append(coming[1].clone())
    return out, (done, host)


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
