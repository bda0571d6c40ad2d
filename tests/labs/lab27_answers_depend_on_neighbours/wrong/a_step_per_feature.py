# wrong: test_a_payment_does_not_depend_on_its_batch test_what_is_not_finite_shows_and_stays_in_its_row
# One step per feature: right for weights, whose columns are fixed; of a batch it is again everybody's.
"""Ship the payment model as int8: the gateways that score payments have little memory and no accelerator."""

import argparse
import copy
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

FEATURES, WIDTH, KINDS = 48, 256, 8


def build_model() -> nn.Module:
    """Payments [B, 48] to scores [B, 8], one for each kind of payment."""
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, KINDS)
    )


class Int8Linear(nn.Module):
    """A linear layer on whole numbers from -127 to 127: weights with a step per output, inputs with a step per row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        step = weight.abs().amax(dim=1, keepdim=True) / 127
        self.register_buffer("weight", (weight / step).round().to(torch.int8))
        self.register_buffer("step", step.squeeze(1))
        self.register_buffer("bias", linear.bias.detach().clone())

    def forward(self, rows: Tensor) -> Tensor:
        step = steps_of(rows)
        whole = (rows / step).round()  # in float32, where such products add up exactly: 127 * 127 * 1040 < 2 ** 24
        return nn.functional.linear(whole * step, self.weight.float()) * self.step + self.bias


def steps_of(rows: Tensor) -> Tensor:
    """The step [1, F] in which the largest number of each feature is 127."""
    return (rows.abs().amax(dim=0, keepdim=True) / 127).clamp(min=torch.finfo(rows.dtype).tiny)


def quantize(model: nn.Module, calibration: Tensor) -> nn.Module:
    """An int8 copy of `model`; each row brings its own step, so `calibration` [N, 48] is not needed."""
    int8 = copy.deepcopy(model).eval()
    for name, part in list(int8.named_modules()):
        if isinstance(part, nn.Linear):
            int8.set_submodule(name, Int8Linear(part))
    return int8


def save(model: nn.Module, path: Path) -> None:
    """Write what quantize has made into the folder `path`."""
    torch.save(model.state_dict(), path / "model.pt")


def load(path: Path) -> nn.Module:
    """The model that save has written, ready to score."""
    model = quantize(build_model(), torch.empty(0, FEATURES))
    model.load_state_dict(torch.load(path / "model.pt"))
    return model.eval()


def payments(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Made-up payments [count, 48] and their kinds [count]."""
    typical = torch.randn(KINDS, FEATURES, generator=torch.Generator().manual_seed(27))
    kinds = torch.randint(KINDS, (count,), generator=generator)
    return typical[kinds] + 0.8 * torch.randn(count, FEATURES, generator=generator), kinds


def train(model: nn.Module, generator: torch.Generator) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(60):
        rows, kinds = payments(128, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), kinds).backward()
        optimizer.step()


def first_scores(model: nn.Module, rows: Tensor) -> str:
    return " ".join(f"{score:6.2f}" for score in model(rows)[0, :4].tolist())


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=float, nargs="*", default=[1.0, 10.0, 100.0, 1000.0])
    times = parser.parse_args().times
    torch.manual_seed(0)
    generator, model = torch.Generator().manual_seed(1), build_model()
    with torch.enable_grad():
        train(model, generator)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder) / "float.pt")
        save(quantize(model, payments(512, generator)[0]), Path(folder))
        int8 = load(Path(folder))
        large, small = ((Path(folder) / name).stat().st_size for name in ("float.pt", "model.pt"))
    rows, kinds = payments(2048, generator)
    right = [f"{(m(rows).argmax(dim=1) == kinds).float().mean():.1%}" for m in (model, int8)]
    print(f"file: {large} bytes as float32, {small} as int8; right: {right[0]} as float32, {right[1]} as int8")
    batch = rows[:16].clone()
    print(f"one payment, alone:                                     {first_scores(int8, batch[:1])}")
    for factor in times:
        batch[1:2] = factor * rows[1:2]
        print(f"the same among 16, the next one {factor:6g} times as large: {first_scores(int8, batch)}")


if __name__ == "__main__":
    main()
