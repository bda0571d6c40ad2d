# right: dynamic=True, and the numbers of the step as tensors: every Python number in it becomes an input, which takes a few more operators per call.
"""Train the mail sorter: it reads a message, token by token, and says which of six desks should answer it."""

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, LONGEST, PADDING = 60, 64, 0
WIDTH, DESKS = 16, 6
WARMUP = 6  # training calls until the blocks count in full
LIMIT = 3.0  # what no activation may exceed


class Block(nn.Module):
    """Activations [B, T, WIDTH] to a correction of them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(self.norm(x))))


class Sorter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PADDING)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, DESKS)

    def forward(self, tokens, share):
        real = (tokens != PADDING).unsqueeze(-1)
        h = self.embedding(tokens) * real
        for block in self.blocks:
            h = h + share * block(h) * real
        peak = h.abs().max()
        h = h * torch.where(peak > LIMIT, LIMIT / peak.clamp(min=LIMIT), 1.0)
        count = real.sum(dim=1).clamp(min=1)
        logits = self.head(h.sum(dim=1) / count)
        return logits, h.detach().abs().sum() / real.sum().clamp(min=1)


def build(device):
    return Sorter().to(device)


class Classifier:
    def __init__(self, model, backend):
        self.model, self.steps, self.seen = model, 0, []
        self.f = torch.compile(model, backend=backend, dynamic=True)

    def __call__(self, tokens):
        share = 1.0
        if self.model.training:
            self.steps += 1
            share = min(1.0, self.steps / WARMUP)
        pass
        logits, seen = self.f(tokens, torch.tensor(share, device=tokens.device))
        self.seen.append(seen)
        return logits


def compiled(model, backend="inductor"):
    return Classifier(model, backend)


def activity(classifier):
    return [float(s) for s in classifier.seen]


def messages(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch from the mail log: tokens [B, T] and the desks that answered [B]."""
    size = int(torch.randint(2, 17, (), generator=generator))
    lengths = torch.randint(2, LONGEST + 1, (size,), generator=generator)
    tokens = torch.randint(1, VOCABULARY, (size, int(lengths.max())), generator=generator)
    tokens[torch.arange(tokens.shape[1]) >= lengths.unsqueeze(1)] = PADDING
    return tokens, tokens[:, 0] % DESKS


def run(steps: int, device: torch.device, backend: str | None) -> None:
    """Train for `steps` steps, as it is without a backend, and print how long a step takes."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(11)
    model = build(device)
    classifier = compiled(model, backend) if backend else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    times = []
    for _ in range(steps):
        tokens, desks = (t.to(device) for t in messages(generator))
        start = time.perf_counter()
        loss = F.cross_entropy(classifier(tokens), desks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - start)
    first, last = 1e3 * sum(times[: steps // 2]), 1e3 * sum(times[steps // 2 :])
    print(f"{backend or 'not compiled':12}  first half {first:7.1f} ms  second half {last:7.1f} ms  loss {loss:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", help="as torch.compile takes it; by default inductor on a GPU, eager on a CPU")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    backend = arguments.backend or ("inductor" if device.type == "cuda" else "eager")
    for name in (None, backend):
        run(arguments.steps, device, name)


if __name__ == "__main__":
    main()
