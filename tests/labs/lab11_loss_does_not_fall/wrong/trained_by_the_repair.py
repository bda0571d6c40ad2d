# wrong: test_only_the_cause_is_changed
# Units are drawn anew and then trained right away, to be on the safe side: the platform's run is no longer the run.
"""The clinic of the training platform: jobs whose loss does not fall come in, and leave with a cause and a repair."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CAUSES = (
    "healthy", "broadcast_loss", "dead_units", "equal_units", "exploding_gradients", "learning_rate",
    "misaligned_targets", "softmax_twice", "stale_optimizer", "unregistered_layers", "vanishing_gradients",
)  # fmt: skip
PLACES = 4  # how far targets may be out of step


@dataclass
class Trainer:
    """A job: what the platform trains, and on what."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> mean over the batch
    inputs: Tensor
    targets: Tensor
    batch_size: int
    epochs: int
    max_norm: float | None = None


def train(trainer: Trainer, epochs: int) -> list[float]:
    """So many passes over the data, in order. The loss of each batch."""
    losses = []
    trainer.model.train()
    for _ in range(epochs):
        batches = (t.split(trainer.batch_size) for t in (trainer.inputs, trainer.targets))
        for x, y in zip(*batches, strict=True):
            loss = trainer.loss_fn(trainer.model(x), y)
            trainer.optimizer.zero_grad()
            loss.backward()
            if trainer.max_norm is not None:
                nn.utils.clip_grad_norm_(trainer.model.parameters(), trainer.max_norm)
            trainer.optimizer.step()
            losses.append(loss.item())
    return losses


# ------------------------------------------------------------------------------------------------------------ diagnosis


def diagnose(trainer: Trainer) -> str:
    """The cause, out of CAUSES. Whatever is tried is tried on copies."""
    for cause, shows in EXAMINATIONS.items():
        if shows(copy.deepcopy(trainer)):
            return cause
    return "healthy"


def pairing_does_not_matter(trainer: Trainer) -> bool:
    """The loss is the same whichever output meets whichever target."""
    with torch.no_grad():
        outputs = torch.rand_like(trainer.model(trainer.inputs))
        orders = [torch.randperm(len(outputs), device=outputs.device) for _ in range(4)]
        losses = torch.stack([trainer.loss_fn(outputs, trainer.targets[order]) for order in orders])
    return bool((losses - losses[0]).abs().max() <= 1e-5 * losses[0].abs())


def reached(trainer: Trainer) -> list[Tensor]:
    """The leaves of the graph behind the loss."""
    loss = trainer.loss_fn(trainer.model(trainer.inputs), trainer.targets)
    found, seen, nodes = [], set(), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found += [node.variable] if hasattr(node, "variable") else []
        nodes += [below for below, _ in node.next_functions]
    return found


def ids(tensors) -> set[int]:
    return {id(t) for t in tensors}


def owned(trainer: Trainer) -> list[Tensor]:
    return [p for group in trainer.optimizer.param_groups for p in group["params"]]


def computes_with_strangers(trainer: Trainer) -> bool:
    return not ids(reached(trainer)) <= ids(trainer.model.parameters())


def steps_what_is_gone(trainer: Trainer) -> bool:
    """The optimizer holds tensors that the loss does not depend on, and lacks some that it does."""
    in_loss, held = ids(reached(trainer)), ids(owned(trainer))
    return bool(in_loss - held) and bool(held - in_loss)


def is_never_content(trainer: Trainer) -> bool:
    """The loss is not near zero even for outputs that are sure and right."""
    if trainer.targets.is_floating_point():
        return False
    with torch.no_grad():
        outputs = trainer.model(trainer.inputs)
        perfect = F.one_hot(trainer.targets, outputs.shape[1]).to(outputs.dtype)
        return trainer.loss_fn(perfect if are_probabilities(outputs) else 100 * perfect, trainer.targets).item() > 0.1


def are_probabilities(outputs: Tensor) -> bool:
    return bool((outputs >= 0).all() and ((outputs.sum(dim=1) - 1).abs() < 1e-4).all())


def shift(trainer: Trainer) -> int:
    """By how many places the targets must be rolled so that a linear model of unseen rows does best."""
    x = trainer.inputs.flatten(1).double()
    x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    y = trainer.targets
    y = y.double().reshape(len(y), -1) if y.is_floating_point() else F.one_hot(y).double()
    shifts = sorted(range(-PLACES, PLACES + 1), key=abs)
    every, cut = torch.stack([y.roll(k, dims=0) for k in shifts]), 2 * len(x) // 3
    fitted = torch.linalg.solve(x[:cut].T @ x[:cut] + torch.eye(x.shape[1]).to(x), x[:cut].T @ every[:, :cut])
    errors = (x[cut:] @ fitted - every[:, cut:]).square().mean(dim=(1, 2))
    best = int(errors.argmin())
    return shifts[best] if errors[best] < 0.8 * errors[0] else 0


def gradients(trainer: Trainer) -> dict[str, tuple[Tensor, Tensor]]:
    """Weights of two dimensions and more with their gradients over all the data, from the input to the output."""
    trainer.optimizer.zero_grad()
    trainer.loss_fn(trainer.model(trainer.inputs), trainer.targets).backward()
    return {n: (p, p.grad) for n, p in trainer.model.named_parameters() if p.grad is not None}


def is_loud(trainer: Trainer) -> bool:
    """Gradients are hundreds of times the size of the weights, or not finite."""
    norms = [float(g.norm() / p.detach().norm().clamp_min(1.0)) for p, g in gradients(trainer).values()]
    return not max(norms) < 300 or not all(math.isfinite(n) for n in norms)


def after_an_epoch(trainer: Trainer) -> dict[str, tuple[Tensor, Tensor]]:
    """The same after one pass: what was zero on purpose at the start no longer is."""
    train(trainer, 1)
    return {n: pair for n, pair in gradients(trainer).items() if pair[0].ndim > 1}


def units_are_alike(trainer: Trainer) -> bool:
    """In some layer all units have one weight vector, and one gradient."""
    return any(len(p) > 1 and alike(p) and alike(g) for p, g in after_an_epoch(trainer).values())


def alike(rows: Tensor) -> bool:
    return bool((rows - rows[0]).abs().max() <= 1e-4 * rows.abs().max())


def units_are_silent(trainer: Trainer) -> bool:
    return any(not g.any() for _, g in after_an_epoch(trainer).values())


def gradients_fade(trainer: Trainer) -> bool:
    """Somewhere on the way the gradient has all but gone, next to the largest."""
    norms = [float(g.norm()) for _, g in after_an_epoch(trainer).values()]
    norms += [float(g.norm()) for p, g in gradients(trainer).values() if p.ndim == 1][-1:]
    return min(norms) < 1e-4 * max(norms)


def stands_still(trainer: Trainer) -> bool:
    """A pass moves no weight by more than half a percent, far from a loss worth standing still for."""
    before = [p.detach().clone() for p in owned(trainer)]
    losses = train(trainer, 1)
    moved = [
        float((p.detach() - old).norm() / old.norm().clamp_min(1e-9))
        for p, old in zip(owned(trainer), before, strict=True)
    ]
    return max(moved) < 5e-3 and sum(losses) / len(losses) > 0.5 * guess(trainer)


def guess(trainer: Trainer) -> float:
    """The loss of the best answer that is always the same."""
    if trainer.targets.is_floating_point():
        return trainer.targets.var().item()
    shares = trainer.targets.bincount() / len(trainer.targets)
    return -(shares * shares.clamp_min(1e-9).log()).sum().item()


EXAMINATIONS: dict[str, Callable[[Trainer], bool]] = {  # the order counts: each supposes that the ones before said no
    "broadcast_loss": pairing_does_not_matter,
    "unregistered_layers": computes_with_strangers,
    "stale_optimizer": steps_what_is_gone,
    "softmax_twice": is_never_content,
    "misaligned_targets": lambda trainer: shift(trainer) != 0,
    "exploding_gradients": is_loud,
    "equal_units": units_are_alike,
    "dead_units": units_are_silent,
    "vanishing_gradients": gradients_fade,
    "learning_rate": stands_still,
}


# -------------------------------------------------------------------------------------------------------------- repair


def repair(trainer: Trainer, cause: str) -> Trainer:
    """Take the cause away, and nothing else."""
    if cause != "healthy":
        REPAIRS[cause](trainer)
        trainer.optimizer.zero_grad()
    return trainer


def pair_row_with_row(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.targets = trainer.targets.reshape(trainer.model(trainer.inputs).shape)


def register(trainer: Trainer) -> None:
    """Containers of layers become containers that a module knows, and the optimizer gets what was missing."""
    missing = ids(reached(trainer)) - ids(trainer.model.parameters())
    for part in list(trainer.model.modules()):
        for name, value in list(vars(part).items()):
            if any(isinstance(m, nn.Module) and ids(m.parameters()) & missing for m in contents(name, value)):
                setattr(part, name, nn.ModuleDict(value) if isinstance(value, dict) else nn.ModuleList(value))
    found = [p for p in trainer.model.parameters() if id(p) in missing]
    trainer.optimizer.add_param_group({"params": found})


def contents(name: str, value) -> list:
    """What an attribute holds, if it is a list, a tuple or a dict of somebody's own."""
    if name.startswith("_") or not isinstance(value, list | tuple | dict):
        return []
    return list(value.values() if isinstance(value, dict) else value)


def hand_over(trainer: Trainer) -> None:
    """What the optimizer holds in vain makes room for what it lacks, in the same group."""
    in_loss = reached(trainer)
    new = [p for p in trainer.model.parameters() if id(p) in ids(in_loss) - ids(owned(trainer))]
    for group in trainer.optimizer.param_groups:
        kept = [p for p in group["params"] if id(p) in ids(in_loss)]
        if len(kept) < len(group["params"]):
            group["params"], new = [*kept, *new], []


def score_once(trainer: Trainer) -> None:
    """One softmax in all: the model's where it has one, else the loss's."""
    with torch.no_grad():
        done = are_probabilities(trainer.model(trainer.inputs))
    trainer.loss_fn = (lambda p, y: F.nll_loss(p.clamp_min(1e-30).log(), y)) if done else F.cross_entropy


def align(trainer: Trainer) -> None:
    trainer.targets = trainer.targets.roll(shift(trainer), dims=0)


def draw_the_silent_again(trainer: Trainer) -> None:
    """Every layer whose weights get no gradient at all starts anew."""
    silent = [n.rpartition(".")[0] for n, (p, g) in gradients(trainer).items() if p.ndim > 1 and not g.any()]
    for name in silent:
        trainer.model.get_submodule(name).reset_parameters()


def draw_again(trainer: Trainer) -> None:
    for part in trainer.model.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    state = copy.deepcopy(trainer.optimizer.state_dict())
    train(trainer, 2 * trainer.epochs)
    trainer.optimizer.load_state_dict(state)


def keep_the_size(trainer: Trainer) -> None:
    """Signals keep their size from layer to layer and from one time to the next."""
    for name, p in trainer.model.named_parameters():
        if "weight_hh" in name:
            nn.init.orthogonal_(p)
        elif p.ndim > 1:
            nn.init.kaiming_normal_(p, nonlinearity="relu")
        else:
            nn.init.zeros_(p)


def let_gradients_through(trainer: Trainer) -> None:
    """Tanh for sigmoid, whose slope is a quarter at most, and weights that keep the size."""
    for part in list(trainer.model.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, nn.Sigmoid):
                setattr(part, name, nn.Tanh())
    for p in trainer.model.parameters():
        nn.init.xavier_normal_(p, gain=1.2) if p.ndim > 1 else nn.init.zeros_(p)


def find_a_rate(trainer: Trainer) -> None:
    """The smallest power of ten that ends close to the lowest loss of all."""
    losses = {}
    for factor in [10.0**k for k in range(8)]:
        losses[factor] = max(train(faster(copy.deepcopy(trainer), factor), trainer.epochs)[-8:], key=nan_last)
        if not losses[factor] < 2 * guess(trainer):
            break
    close = min(losses.values(), key=nan_last) + 0.1 * guess(trainer)
    faster(trainer, next(factor for factor, loss in losses.items() if loss <= close))


def nan_last(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss


def faster(trainer: Trainer, factor: float) -> Trainer:
    for group in trainer.optimizer.param_groups:
        group["lr"] *= factor
    return trainer


REPAIRS: dict[str, Callable[[Trainer], None]] = {
    "broadcast_loss": pair_row_with_row,
    "dead_units": draw_the_silent_again,
    "equal_units": draw_again,
    "exploding_gradients": keep_the_size,
    "learning_rate": find_a_rate,
    "misaligned_targets": align,
    "softmax_twice": score_once,
    "stale_optimizer": hand_over,
    "unregistered_layers": register,
    "vanishing_gradients": let_gradients_through,
}


# --------------------------------------------------------------------------------------------------------- last night's


class Tower(nn.Module):
    """Features [B, 10] to the logits of five kinds."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(10, width)
        self.layers = [nn.Linear(width, width) for _ in range(depth)]
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x).relu()
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def admitted() -> dict[str, Trainer]:
    """Last night's jobs, on made-up data."""
    g = torch.Generator().manual_seed(11)
    x = torch.randn(512, 10, generator=g)
    kinds, level = x[:, :5].argmax(dim=1), x[:, :1].tanh() + 0.5 * x[:, 1:2]
    mixed = torch.where(torch.rand(512, generator=g) < 0.6, torch.randint(5, (512,), generator=g), kinds)
    layers = [nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
    jobs = {
        "parcels": (Tower(32, 2), F.cross_entropy, kinds),
        "orchard": (nn.Sequential(*copy.deepcopy(layers), nn.Linear(32, 5), nn.Softmax(dim=1)), F.cross_entropy, kinds),
        "reservoir": (nn.Sequential(*copy.deepcopy(layers), nn.Linear(32, 1)), squared_error, level[:, 0]),
        "tramways": (nn.Sequential(*layers, nn.Linear(32, 5)), F.cross_entropy, mixed),
    }
    made = {}
    for name, (model, loss_fn, targets) in jobs.items():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        made[name] = Trainer(model, optimizer, loss_fn, x, targets, batch_size=64, epochs=15)
    return made


def main() -> None:
    torch.manual_seed(0)
    for name, trainer in admitted().items():
        untreated = train(copy.deepcopy(trainer), trainer.epochs)[-8:]
        cause = diagnose(trainer)
        repaired = train(repair(trainer, cause), trainer.epochs)[-8:]
        print(f"{name:10} loss {sum(untreated) / 8:.3f}   {cause:20} after repair {sum(repaired) / 8:.3f}")


if __name__ == "__main__":
    main()
