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

    def remember(self, places: Tensor) -> None:
        """Overwrite the oldest rows of the memory."""
        rows = (self.oldest + torch.arange(len(places), device=places.device)) % MEMORY
        self.memory.data[rows] = places.data
        self.oldest = (self.oldest + len(places)) % MEMORY


def build(device: torch.device) -> Search:
    """The model on `device`."""
    return Search().to(device)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """How far each row of a [N, D] is from the same row of b [N, D]; returns [N], 0 where they are equal."""
    squared = (a - b).square().sum(dim=-1)
    return torch.where(squared > 0, squared.sqrt(), torch.zeros_like(squared))


def losses(model: Search, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of the encoder, loss of the shelf, and the places of the other photos [B, SPACE]."""
    photos, others, shelves = batch
    a, b = model.encoder(photos), model.encoder(others)
    scores = torch.cat([(a * b).sum(dim=-1, keepdim=True), a @ model.memory.T], dim=1)
    contrast = F.cross_entropy(scores, torch.zeros_like(shelves))  # its own other photo, not what is remembered
    shelf = F.cross_entropy(model.shelf(a), shelves)
    return contrast + distance(a, b).mean() + 0.5 * shelf, shelf, b


def descend(module: nn.Module, loss: Tensor, lr: float) -> None:
    """One step of gradient descent for the parameters of one module."""
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.data -= lr * gradient


def train_step(model: Search, batch: Batch, lr: float) -> float:
    """One step on one batch; returns the encoder's loss before it."""
    loss, shelf, places = losses(model, batch)
    model.remember(places)
    descend(model.shelf, shelf, lr)
    descend(model.encoder, loss, lr)
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
