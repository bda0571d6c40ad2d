# wrong: test_running_and_stopped test_recordings_of_any_length test_notes_are_read test_served_equals_the_model
# an article's advice, to script the trace because that is more robust: torch.jit.script hands the very same trace back
"""Ship the pump monitor from the notebook to the boxes in the field, which run saved programs and no code of ours."""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

CHANNELS, WIDTH, WORDS = 6, 16, 50
FAULTS = ("none", "bearing", "seal", "cavitation", "imbalance", "blocked")
TURNING = 0.5  # mean speed, the first channel, above which a pump counts as running


class Monitor(nn.Module):
    """A recording of one pump, as a dict of tensors, to one score per fault."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(CHANNELS, WIDTH)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.dropout = nn.Dropout(0.2)
        stopped = nn.Linear(WIDTH, len(FAULTS))
        running = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, len(FAULTS)))
        self.heads = nn.ModuleList([stopped, running])

    def forward(self, batch):
        readings = batch["readings"]
        summary = torch.tanh(self.encode(readings)).sum(dim=0) / len(readings)
        if "text" in batch:  # what the operator wrote, where he wrote something
            summary = summary + self.words(batch["text"]).mean(dim=0)
        speed = readings[:, 0].mean()
        running = int(speed > TURNING)
        if running:
            summary = summary / speed
        return self.heads[running](self.dropout(summary))


def build_model() -> nn.Module:
    """The model that training fills with weights."""
    return Monitor()


def example() -> dict[str, Tensor]:
    """Eight readings of the pump on the test bench, which stands still most of the time."""
    readings = torch.randn(8, CHANNELS, generator=torch.Generator().manual_seed(0))
    readings[:, 0] = 0.0
    return {"readings": readings}


def export(model: nn.Module, folder: Path) -> None:
    """Write the program that the boxes run."""
    traced = torch.jit.trace(model.eval(), (example(),))
    torch.jit.script(traced).save(folder / "monitor.pt")


def check(model: nn.Module, folder: Path) -> None:
    """What must hold before a program is shipped."""
    deployed = torch.jit.load(folder / "monitor.pt")
    torch.testing.assert_close(deployed(example()), model(example()))
    print("check: the deployed copy answers as the notebook")


def field(count: int) -> list[dict[str, Tensor]]:
    """Recordings as they come in: pumps of all kinds, some with a note."""
    generator = torch.Generator().manual_seed(1)
    recordings = []
    for i in range(count):
        readings = torch.randn(4 + 3 * i, CHANNELS, generator=generator)
        readings[:, 0] = 1.0 + torch.rand(len(readings), generator=generator) if i % 2 else 0.0
        note = {"text": torch.randint(WORDS, (5,), generator=generator)} if i % 3 == 0 else {}
        recordings.append({"readings": readings} | note)
    return recordings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("artifact"))
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = build_model()
    export(model, folder)
    check(model, folder)
    deployed = torch.jit.load(folder / "monitor.pt")
    for i, batch in enumerate(field(6)):
        told, wanted = (FAULTS[int(answer(batch).argmax())] for answer in (deployed, model))
        apart = (deployed(batch) - model(batch)).abs().max().item()
        print(f"pump {i}, {len(batch['readings']):2} readings: box {told}, notebook {wanted}, scores {apart:.2f} apart")


if __name__ == "__main__":
    main()
