# wrong: test_loss_and_gradients_are_finite test_equals_float64
# Right but for the sum, which is taken in the logits' dtype: float16 ends at 65504, and a long batch is beyond it.
"""Train the command decoder: it answers in a small language whose grammar allows only some tokens at each position."""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, WIDTH = 48, 32
IGNORE = -100  # a position without a target: the prompt, or what follows the end of the answer


class Decoder(nn.Module):
    """Token embedding, one recurrent layer, one logit per token of the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.recurrent(self.embedding(tokens))
        return self.head(hidden)


def loss_fn(logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Mean negative log-likelihood of the targets over the tokens that the grammar allows.

    logits [B, T, V], targets [B, T] with IGNORE where there is nothing to predict, mask [B, T, V] true where allowed.
    """
    scores = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    counted = targets != IGNORE
    log_likelihood = F.log_softmax(scores, dim=-1).gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return -log_likelihood.masked_fill(~counted, 0).sum() / counted.sum().clamp(min=1)


def sample_batch(generator: torch.Generator, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """One batch from the command log: tokens [8, 12], targets [8, 12], mask [8, 12, V]."""
    tokens = torch.randint(VOCABULARY, (8, 12), generator=generator)
    targets = (tokens * 7 + 3) % VOCABULARY
    mask = torch.rand(8, 12, VOCABULARY, generator=generator) < 0.4
    mask.scatter_(-1, targets.unsqueeze(-1), True)
    if step % 5 == 4:  # the shard with short commands
        lengths = torch.randint(3, 13, (8,), generator=generator)
        after_end = torch.arange(12) >= lengths.unsqueeze(1)
        targets[after_end] = IGNORE
        mask[after_end] = False
    return tokens, targets, mask


def train(steps: int, device: torch.device) -> list[dict[str, float]]:
    """Train for `steps` steps; the loss and the gradient norm of each."""
    generator = torch.Generator().manual_seed(11)
    model = Decoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    history = []
    for step in range(steps):
        tokens, targets, mask = (t.to(device) for t in sample_batch(generator, step))
        loss = loss_fn(model(tokens), targets, mask)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        history.append({"loss": loss.item(), "grad_norm": norm.item()})
    return history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    for step, entry in enumerate(train(arguments.steps, torch.device(arguments.device))):
        print(f"step {step:3d}  loss={entry['loss']:.4f}  grad_norm={entry['grad_norm']:.4f}")


if __name__ == "__main__":
    main()
