# wrong: test_notes_are_read
# clamps words to the vocabulary so that nothing raises: an unknown word is answered as if it were the last one known
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
        readings = batch["readings"]
        summary = torch.tanh(self.encode(readings)).mean(dim=0)
        if "text" in batch:  # fixed in a program: there is one for recordings with a note and one for those without
            summary = summary + self.words(batch["text"]).mean(dim=0)
        speed = readings[:, 0].mean()
        return torch.cond(speed > TURNING, self.if_running, self.if_stopped, (self.dropout(summary), speed))

    def if_running(self, summary: Tensor, speed: Tensor) -> Tensor:
        return self.heads[1](summary / speed)

    def if_stopped(self, summary: Tensor, speed: Tensor) -> Tensor:
        return self.heads[0](summary)


def build_model() -> nn.Module:
    """The model that training fills with weights."""
    return Monitor()


def example(note: bool) -> dict[str, Tensor]:
    """Eight readings of the pump on the test bench; what it does, and for how long, does not matter to the export."""
    readings = torch.randn(8, CHANNELS, generator=torch.Generator().manual_seed(0))
    readings[:, 0] = 0.0
    return {"readings": readings} | ({"text": torch.tensor([1, 2, 3])} if note else {})


def export(model: nn.Module, folder: Path) -> None:
    """Write the two programs that the boxes run."""
    free = {"readings": {0: Dim("length")}, "text": {0: Dim("words")}}
    for name, note in (("silent.pt2", False), ("noted.pt2", True)):
        batch = example(note)
        shapes = {part: free[part] for part in batch}
        torch.export.save(torch.export.export(model.eval(), (batch,), dynamic_shapes=(shapes,)), folder / name)


def route(batch: dict[str, Tensor]) -> tuple[str, tuple]:
    """Which program answers this recording, and what it is called with."""
    if "text" not in batch:
        return "silent.pt2", (batch,)
    return "noted.pt2", ({**batch, "text": batch["text"].clamp(0, 49)},)


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
