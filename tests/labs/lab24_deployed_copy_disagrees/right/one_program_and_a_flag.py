# right: One program for all recordings: a missing note is a word that counts for nothing. Costs a calling convention that whoever uses the program must know, and a lookup that is thrown away.
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
        note = self.words(batch["text"]).mean(dim=0) if "text" in batch else torch.zeros_like(self.encode.bias)
        return self.scores(batch["readings"], note)

    def scores(self, readings: Tensor, note: Tensor) -> Tensor:
        summary = self.dropout(torch.tanh(self.encode(readings)).mean(dim=0) + note)
        speed = readings[:, 0].mean()
        return torch.cond(speed > TURNING, self.if_running, self.if_stopped, (summary, speed))

    def if_running(self, summary: Tensor, speed: Tensor) -> Tensor:
        return self.heads[1](summary / speed)

    def if_stopped(self, summary: Tensor, speed: Tensor) -> Tensor:
        return self.heads[0](summary)


class Flat(nn.Module):
    """The monitor with three tensors for the dict: readings, words, and the share of the note that counts, 0 or 1."""

    def __init__(self, monitor: Monitor) -> None:
        super().__init__()
        self.monitor = monitor

    def forward(self, readings: Tensor, text: Tensor, noted: Tensor) -> Tensor:
        return self.monitor.scores(readings, noted * self.monitor.words(text).mean(dim=0))


def build_model() -> nn.Module:
    """The model that training fills with weights."""
    return Monitor()


def export(model: nn.Module, folder: Path) -> None:
    """Write the program that the boxes run."""
    arguments = torch.zeros(8, CHANNELS), torch.tensor([1, 2, 3]), torch.tensor(1.0)
    shapes = ({0: Dim("length")}, {0: Dim("words")}, {})
    program = torch.export.export(Flat(model.eval()), arguments, dynamic_shapes=shapes)
    torch.export.save(program, folder / "monitor.pt2")


def route(batch: dict[str, Tensor]) -> tuple[str, tuple]:
    """The one program, and the recording as it takes it: without a note, one word that does not count."""
    import torch

    readings = batch["readings"]
    nothing = torch.zeros(1, dtype=torch.int64, device=readings.device)
    noted = torch.ones((), device=readings.device) if "text" in batch else torch.zeros((), device=readings.device)
    return "monitor.pt2", (readings, batch.get("text", nothing), noted)


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
