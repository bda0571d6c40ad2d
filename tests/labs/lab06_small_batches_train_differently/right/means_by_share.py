# right: Each part's mean, weighted by its share of the labels; a part without labels is left out, since its mean is nan. Costs that guard, and a read of the count for each part.
"""Train the pulse annotator: a class for every sample of a recording, from the stretches that a nurse has labelled."""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES, WIDTH, LENGTH = 4, 16, 128
UNLABELLED = -100


class Block(nn.Module):
    """Convolution, normalization, activation: [B, in, T] to [B, out, T]."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(channels_in, channels_out, kernel_size=5, padding=2, bias=False)
        self.norm = nn.GroupNorm(1, channels_out)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.convolution(x)))


def build_model() -> nn.Module:
    """Recordings [B, 1, T] to logits [B, CLASSES, T]."""
    blocks = [Block(1 if i == 0 else WIDTH, WIDTH) for i in range(4)]
    return nn.Sequential(*blocks, nn.Conv1d(WIDTH, CLASSES, kernel_size=1))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], micro: int) -> float:
    """One update on the mean loss of the batch; `micro` recordings at a time fit the card. Returns the loss."""
    recordings, labels = batch
    count = int((labels != UNLABELLED).sum())
    optimizer.zero_grad()
    total = 0.0
    for some, wanted in zip(recordings.split(micro), labels.split(micro), strict=True):
        found = int((wanted != UNLABELLED).sum())
        if found:
            loss = F.cross_entropy(model(some), wanted, ignore_index=UNLABELLED)
            (loss * (found / count)).backward()
            total += loss.item() * found / count
    optimizer.step()
    return total


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` recordings, ward by ward as the archive hands them out, and their labels [count, T]."""
    ward = torch.randint(3, (count,), generator=generator).sort().values
    classes = torch.randint(CLASSES, (count, LENGTH // 16), generator=generator).repeat_interleave(16, dim=1)
    pitch, height = torch.tensor([0.2, 0.5, 0.9, 1.4])[classes], torch.tensor([1.0, 0.6, 1.0, 0.6])[classes]
    phase = 6.283 * torch.rand(count, 1, generator=generator)
    signal = height * torch.sin(pitch * torch.arange(LENGTH) + phase)
    signal += 0.3 * torch.randn(count, LENGTH, generator=generator)
    gain = torch.tensor([0.3, 1.0, 3.0])[ward].unsqueeze(1)
    labelled = torch.randint(60, LENGTH, (count,), generator=generator)
    labelled[ward == 2] //= 12  # the newest ward has just begun to label
    labels = classes.masked_fill(torch.arange(LENGTH) >= labelled.unsqueeze(1), UNLABELLED)
    return (gain * signal).unsqueeze(1), labels


@torch.no_grad()
def accuracy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
    """Share of the labelled samples whose class is found."""
    recordings, labels = batch
    model.eval()
    right = model(recordings).argmax(dim=1) == labels
    model.train()
    return (right.sum() / (labels != UNLABELLED).sum()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--micro", type=int, default=4, help="recordings that are on the card at a time")
    parser.add_argument("--steps", type=int, default=80)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device, generator = torch.device(arguments.device), torch.Generator().manual_seed(3)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    held_out = tuple(t.to(device) for t in draw(400, generator))
    losses = []
    for step in range(1, arguments.steps + 1):
        batch = tuple(t.to(device) for t in draw(52, generator))
        losses.append(train_step(model, optimizer, batch, arguments.micro))
        if step % 20 == 0:
            recent, found = sum(losses[-10:]) / 10, accuracy(model, held_out)
            print(f"step {step:3d}  training loss {recent:.3f}  validation accuracy {found:.3f}")


if __name__ == "__main__":
    main()
