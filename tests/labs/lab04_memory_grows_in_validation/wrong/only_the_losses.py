# wrong: test_evaluation_does_not_grow test_evaluation_takes_what_its_answer_needs test_training_holds_on_to_little
# The advice that every article gives: never append a loss, use item(). The recurrent state still ties each batch to the one before; the certainty and the average still hold their graphs.
"""Train the lift monitor: from the events that a lift's controller has logged so far to the next one."""

import argparse
import sys
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

try:
    import resource
except ImportError:  # on Windows
    resource = None

EVENTS, WIDTH = 40, 64
ACTIVITY = 1.0  # weight of the penalty on large activations
IGNORE = -100  # no next event: the lift is out of service


class LiftMonitor(nn.Module):
    """Event embedding, one recurrent layer, one logit per kind of event."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(EVENTS, WIDTH)
        self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(WIDTH, EVENTS)

    def forward(self, events: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [B, T, EVENTS], activations [B, T, WIDTH], and the state to continue from."""
        hidden, state = self.recurrent(self.embedding(events), state)
        return self.head(self.dropout(hidden)), hidden, state


def build(device: torch.device) -> nn.Module:
    """The model on `device`."""
    return LiftMonitor().to(device)


def evaluate(model: nn.Module, batches: Iterable) -> dict[str, float]:
    """Mean loss and accuracy over all events that count; each batch continues the logs of the batch before."""
    model.eval()
    state, loss, hits, count = None, 0.0, 0, 0
    for events, targets in batches:
        logits, _, state = model(events, state)
        counted = targets != IGNORE
        loss += F.cross_entropy(logits[counted], targets[counted], reduction="sum").item()
        hits += (logits.argmax(-1) == targets).sum()
        count += counted.sum()
    model.train()
    return {"loss": (loss / count).item(), "accuracy": (hits / count).item()}


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable) -> dict:
    """One update per batch. Loss and certainty of each, read once at the end, and the smoothed objective."""
    model.train()
    state, smoothed, losses, certainties = None, None, [], []
    for events, targets in batches:
        logits, hidden, state = model(events, state)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        activity = ACTIVITY * hidden.square().mean()
        optimizer.zero_grad()
        activity.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        state = state.detach()
        objective = loss + activity
        smoothed = objective if smoothed is None else 0.9 * smoothed + 0.1 * objective
        losses.append(loss.item())
        certainties.append(logits.softmax(-1).amax(-1).mean())
    return {"loss": losses, "certainty": torch.stack(certainties).tolist(), "smoothed": smoothed.item()}


def logs(batches: int, device: torch.device, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows of 16 events of 16 lifts each, one after another, and the events that followed."""
    generator = torch.Generator().manual_seed(seed)
    events = torch.randint(EVENTS, (16, 1), generator=generator)
    for _ in range(batches):
        steps = torch.randint(1, 4, (16, 16), generator=generator).cumsum(1)
        window = torch.cat([events, (events + steps) % EVENTS], dim=1).to(device)
        events = window[:, -1:].cpu()
        yield window[:, :-1], window[:, 1:]


def memory() -> float:
    """MiB that tensors take on the card; without one, the most that the process has taken."""
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated() / 2**20
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if resource else 0
    return used / (2**20 if sys.platform == "darwin" else 2**10)


def reported(name: str, batches: Iterable, every: int) -> Iterator:
    """The batches; on the way, what memory is taken."""
    for i, batch in enumerate(batches):
        if i % every == 0:
            print(f"{name} batch {i:3d}  memory {memory():7.1f} MiB", flush=True)
        yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    torch.manual_seed(0)
    model = build(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(2):
        history = train_epoch(model, optimizer, reported("training", logs(60, device, epoch), every=20))
        scores = evaluate(model, reported("validation", logs(300, device, 99), every=60))
        print(f"epoch {epoch}  loss {history['smoothed']:.3f}  certainty {history['certainty'][-1]:.3f}  ", end="")
        print(f"validation loss {scores['loss']:.3f}  accuracy {scores['accuracy']:.3f}")


if __name__ == "__main__":
    main()
