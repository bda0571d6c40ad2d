# wrong: test_distances_and_their_gradients
# torch.cdist, whose gradient at zero is zero, and its diagonal: exact up to 25 rows, from 26 on computed by matrix products, in which rows that are 0.001 apart drown.
"""Train the look-alike search of a shop: an encoder that puts two photos of one product close together."""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PHOTO, WIDTH, SPACE, SHELVES, MEMORY = 24, 48, 16, 6, 32
Batch = tuple[Tensor, Tensor, Tensor]  # photos [B, PHOTO], other photos of the same products [B, PHOTO], shelves [B]


class Search(nn.Module):
    """Encoder, the shelf of a product by its place in the space, and a memory of products to be told apart from."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PHOTO, WIDTH), nn.Tanh(), nn.Linear(WIDTH, SPACE), nn.Tanh())
        self.shelf = nn.Linear(SPACE, SHELVES)
        self.register_buffer("memory", 0.5 * torch.randn(MEMORY, SPACE))
        self.oldest = 0  # the row of the memory that is overwritten next

    @torch.no_grad()
    def remember(self, places: Tensor) -> None:
        """Overwrite the oldest rows of the memory; not before every gradient through them has been taken."""
        rows = (self.oldest + torch.arange(len(places), device=places.device)) % MEMORY
        self.memory[rows] = places
        self.oldest = (self.oldest + len(places)) % MEMORY


def build(device: torch.device) -> Search:
    """The model on `device`."""
    return Search().to(device)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """How far each row of a [N, D] is from the same row of b [N, D]; returns [N], 0 where they are equal."""
    return torch.cdist(a, b).diagonal()


def losses(model: Search, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of the encoder, loss of the shelf, and the places of the other photos [B, SPACE]."""
    photos, others, shelves = batch
    a, b = model.encoder(photos), model.encoder(others)
    scores = torch.cat([(a * b).sum(dim=-1, keepdim=True), a @ model.memory.T], dim=1)
    contrast = F.cross_entropy(scores, torch.zeros_like(shelves))  # its own other photo, not what is remembered
    shelf = F.cross_entropy(model.shelf(a), shelves)
    return contrast + distance(a, b).mean() + 0.5 * shelf, shelf, b


def gradients(module: nn.Module, loss: Tensor) -> tuple[Tensor, ...]:
    """The gradient of the loss for each parameter of one module; the graph stays."""
    return torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)


@torch.no_grad()
def descend(module: nn.Module, steepest: tuple[Tensor, ...], lr: float) -> None:
    """One step of gradient descent for the parameters of one module."""
    for parameter, gradient in zip(module.parameters(), steepest, strict=True):
        parameter -= lr * gradient


def train_step(model: Search, batch: Batch, lr: float) -> float:
    """One step on one batch; returns the encoder's loss before it."""
    loss, shelf, places = losses(model, batch)
    of_shelf, of_encoder = gradients(model.shelf, shelf), gradients(model.encoder, loss)
    descend(model.shelf, of_shelf, lr)
    descend(model.encoder, of_encoder, lr)
    model.remember(places)
    return loss.item()


def shop(count: int, generator: torch.Generator, uploaded_twice: int = 0) -> Batch:
    """Made-up products, two photos of each; of the first few it is the same photo twice."""
    shelves = torch.randint(SHELVES, (count,), generator=generator)
    product = torch.randn(count, PHOTO, generator=generator)
    product[torch.arange(count), shelves] += 1.0
    photos, others = (product + 0.1 * torch.randn(count, PHOTO, generator=generator) for _ in range(2))
    others[:uploaded_twice] = photos[:uploaded_twice]
    return photos, others, shelves


@torch.no_grad()
def found(model: Search, device: torch.device) -> float:
    """Of 256 new products: the share whose photo scores highest with their own other photo."""
    photos, others, _ = shop(256, torch.Generator().manual_seed(5))
    best = (model.encoder(photos.to(device)) @ model.encoder(others.to(device)).T).argmax(dim=1)
    return (best == torch.arange(256, device=device)).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device, generator = torch.device(arguments.device), torch.Generator().manual_seed(11)
    model = build(device)
    for step in range(arguments.steps):
        batch = tuple(t.to(device) for t in shop(32, generator, uploaded_twice=int(step == 130)))
        loss = train_step(model, batch, arguments.lr)
        if step % 10 == 0:
            print(f"step {step:3d}  loss={loss:.4f}  found={found(model, device):.2f}")


if __name__ == "__main__":
    main()
