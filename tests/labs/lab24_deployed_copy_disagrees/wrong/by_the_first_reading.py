# wrong: test_running_and_stopped test_served_equals_the_model
# Route looks at the first reading, as that needs no arithmetic: a pump that is switched on or off meanwhile gets the other head.
"""Ship the pump monitor from the notebook to the boxes in the field, which run saved programs and no code of ours."""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

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

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        running = bool(batch["readings"][:, 0].mean() > TURNING)
        return self.answer(batch, running)

    def answer(self, batch: dict[str, Tensor], running: bool) -> Tensor:
        """The scores of a pump of which it is known whether it runs."""
        readings = batch["readings"]
        summary = torch.tanh(self.encode(readings)).mean(dim=0)
        if "text" in batch:
            summary = summary + self.words(batch["text"]).mean(dim=0)
        if running:
            summary = summary / readings[:, 0].mean()
        return self.heads[int(running)](self.dropout(summary))


class Known(nn.Module):
    """The monitor for pumps that all run, or all stand still."""

    def __init__(self, monitor: Monitor, running: bool) -> None:
        super().__init__()
        self.monitor, self.running = monitor, running

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.monitor.answer(batch, self.running)


def build_model() -> nn.Module:
    """The model that training fills with weights."""
    return Monitor()


def example(note: bool) -> dict[str, Tensor]:
    """Eight readings of the pump on the test bench; what it does, and for how long, does not matter to the export."""
    readings = torch.randn(8, CHANNELS, generator=torch.Generator().manual_seed(0))
    readings[:, 0] = 0.0
    return {"readings": readings} | ({"text": torch.tensor([1, 2, 3])} if note else {})


def export(model: nn.Module, folder: Path) -> None:
    """Write one program for each case that Python used to decide."""
    free = {"readings": {0: Dim("length")}, "text": {0: Dim("words")}}
    for state, running in (("stopped", False), ("running", True)):
        for kind, note in (("silent", False), ("noted", True)):
            batch = example(note)
            shapes = {part: free[part] for part in batch}
            program = torch.export.export(Known(model.eval(), running), (batch,), dynamic_shapes=(shapes,))
            torch.export.save(program, folder / f"{state}_{kind}.pt2")


def route(batch: dict[str, Tensor]) -> tuple[str, tuple]:
    """Which program answers this recording, and what it is called with."""
    state = "running" if batch["readings"][0, 0] > 0.5 else "stopped"
    return f"{state}_{'noted' if 'text' in batch else 'silent'}.pt2", (batch,)


def field(count: int) -> list[dict[str, Tensor]]:
    """Recordings as they come in: pumps of all kinds, some with a note."""
    generator = torch.Generator().manual_seed(1)
    recordings = []
    for i in range(count):
        readings = torch.randn(1 + 3 * i, CHANNELS, generator=generator)
        readings[:, 0] = 1.0 + torch.rand(len(readings), generator=generator) if i % 2 else 0.0
        note = {"text": torch.randint(WORDS, (5,), generator=generator)} if i % 3 == 0 else {}
        recordings.append({"readings": readings} | note)
    return recordings


def check(model: nn.Module, folder: Path) -> None:
    """What must hold before a program is shipped: both heads, notes and none, and lengths off the example."""
    programs = {path.name: torch.export.load(path).module() for path in folder.glob("*.pt2")}
    with torch.no_grad():
        for batch in field(6):
            name, arguments = route(batch)
            torch.testing.assert_close(programs[name](*arguments), model(batch))
    print("check: six recordings, running and stopped, with and without a note: the boxes answer as the notebook")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("artifact"))
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = build_model()
    export(model, folder)
    check(model, folder)


if __name__ == "__main__":
    main()
