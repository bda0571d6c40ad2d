# wrong: test_values_are_right_in_every_order test_every_use_is_ordered test_memory_stays_small
# The event that the host waits for is recorded on the side stream, where the maps are not.
"""Map the archive: every scan of the hospital goes through the model once, as fast as the card takes them."""

import argparse
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

SIDE, TISSUES = 24, 4
MEAN, STD = 0.45, 0.22


def normalized(scans: Tensor) -> Tensor:
    return (scans - MEAN) / STD


def on_the_card(batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """The batches on the device, normalized; while one is worked on, the next is on its way."""
    side, ready = torch.cuda.Stream(device), None
    for batch in batches:
        with torch.cuda.stream(side):
            scans = normalized(batch.to(device, non_blocking=True))
            coming = scans, side.record_event()
        if ready is not None:
            yield handed_over(*ready)
        ready = coming
    if ready is not None:
        yield handed_over(*ready)


def handed_over(scans: Tensor, there: torch.cuda.Event) -> Tensor:
    """Scans that were made on another stream, for use on the current one."""
    current = torch.cuda.current_stream()
    current.wait_event(there)  # they are there before they are used
    scans.record_stream(current)  # and their memory is not given away before they have been
    return scans


@torch.no_grad()
def predict(model: nn.Module, batches: Iterable[Tensor], device: torch.device) -> Tensor:
    """The model's maps of all scans, [N, TISSUES, SIDE, SIDE] on the CPU; the batches are in pinned memory."""
    if device.type == "cpu":
        return torch.cat([model(normalized(batch)) for batch in batches])
    maps, coming, other = [], None, torch.cuda.Stream(device)
    for scans in on_the_card(batches, device):
        copied = model(scans).to("cpu", non_blocking=True)  # pinned memory, not filled yet
        done = other.record_event()
        if coming is not None:
            maps.append(taken(*coming))
        coming = copied, done
    if coming is not None:
        maps.append(taken(*coming))
    return torch.cat(maps)


def taken(copied: Tensor, done: torch.cuda.Event) -> Tensor:
    """The values of a copy once it has been made, in ordinary memory; the pinned memory is free for the next."""
    done.synchronize()
    return copied.clone()


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
