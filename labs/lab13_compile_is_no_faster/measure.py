"""Measure lab13: call what `compiled` returns on messages of many shapes; count graphs, and what runs outside."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from breakfix.contract import describe, expect, expect_tensors, function
from breakfix.probes.graphs import Counter, operators

VOCABULARY, LONGEST, PADDING, WIDTH, DESKS = 60, 64, 0, 16, 6
WARMUP, LIMIT = 6, 3.0
LOUD = range(50, VOCABULARY)  # tokens whose activations pass the limit
# messages and tokens of each call: no two alike, a message by itself in training and in evaluation
SHAPES = {
    "training": [(6, 17), (9, 30), (4, 8), (1, 23)],
    "evaluating": [(8, 19), (3, 44), (1, 10), (11, 27)],
    "training, later": [(12, 41), (3, 64), (7, 12), (5, 2), (10, 35)],
    "training, new shapes": [(13, 29), (1, 47)],
    "evaluating, new shapes": [(1, 61), (14, 5)],
}
SIZES = (4, 5, 6, 7, 9, 12, 16, 20, 3, 2, 1)  # batch sizes of a function that has nothing else to compile again for


@dataclass(frozen=True)
class Inputs:
    """The parameters by name; tokens and desks of every call, by regime; a batch of padding alone; a bad token."""

    parameters: dict[str, Tensor]
    batches: dict[str, list[tuple[Tensor, Tensor]]]
    nothing: tuple[Tensor, Tensor]
    spoiled: int


class Block(nn.Module):
    """The reference's block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(self.norm(x))))


class Sorter(nn.Module):
    """The reference: the n-th training call is told so, and the activity is returned beside the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PADDING)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, DESKS)

    def forward(self, tokens: Tensor, step: int | None) -> tuple[Tensor, float, bool]:
        share = 1.0 if step is None else min(1.0, step / WARMUP)
        real = (tokens != PADDING).unsqueeze(-1)
        h = self.embedding(tokens) * real
        for block in self.blocks:
            h = h + share * block(h) * real
        peak = h.abs().max()
        if limited := bool(peak > LIMIT):
            h = h * (LIMIT / peak)
        logits = self.head(h.sum(dim=1) / real.sum(dim=1).clamp(min=1))
        return logits, float(h.detach().abs().sum() / real.sum().clamp(min=1)), limited


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    spoiled = int(torch.randint(1, LOUD.start, (), generator=g))
    batches = {name: [_batch(shape, i, spoiled, g) for i, shape in enumerate(s)] for name, s in SHAPES.items()}
    return Inputs(_parameters(g), batches, (torch.full((3, 9), PADDING), torch.tensor([0, 3, 5])), spoiled)


def _batch(shape: tuple[int, int], i: int, spoiled: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Messages without the bad token; every other batch is over the limit."""
    messages, longest = shape
    tokens = torch.randint(1, LOUD.start, shape, generator=g)
    tokens[tokens == spoiled] = spoiled % (LOUD.start - 1) + 1
    if i % 2:
        tokens[0, 0] = int(torch.randint(LOUD.start, LOUD.stop, (), generator=g))
    lengths = torch.randint(2, longest + 1, (messages,), generator=g)
    lengths[0] = longest
    tokens[torch.arange(longest) >= lengths.unsqueeze(1)] = PADDING
    return tokens, torch.randint(DESKS, (messages,), generator=g)


def _parameters(g: torch.Generator) -> dict[str, Tensor]:
    """As if trained: quiet activations stay well below the limit, loud ones pass it well."""
    drawn = {}
    for name, value in Sorter().named_parameters():
        scale = {"embedding.weight": 0.2, "head.weight": 1.0}.get(name, 0.1)
        drawn[name] = scale * torch.randn(value.shape, generator=g)
        if name.endswith("norm.weight"):
            drawn[name] += 1
    drawn["embedding.weight"][PADDING] = 0
    drawn["embedding.weight"][LOUD.start :] *= 40
    return drawn


@dataclass
class Bench:
    """The subject's model and what `compiled` made of it, and what was seen of its calls."""

    model: nn.Module
    classifier: Callable
    counter: Counter
    device: torch.device
    graphs_so_far: list[int] = field(default_factory=list)

    def call(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The logits of one call."""
        logits = self.classifier(batch[0].to(self.device))
        fits = isinstance(logits, Tensor) and list(logits.shape) == [len(batch[0]), DESKS]
        expect(fits, "the function that compiled returned", f"logits [{len(batch[0])}, {DESKS}]", describe(logits))
        self.graphs_so_far.append(len(self.counter.graphs))
        return logits

    def regime(self, name: str, batches: list[tuple[Tensor, Tensor]]) -> dict:
        """Logits and gradients of every call, how many graphs each ran, and how many there were afterwards."""
        training = name.startswith("training")
        self.model.train(training)
        logits, gradients, runs, before = [], [], [], len(self.counter.graphs)
        for batch in batches:
            ran = self.counter.runs
            with torch.set_grad_enabled(training):
                logits.append(self.call(batch))
            runs.append(self.counter.runs - ran)
            if training:
                gradients.append(self.gradient(logits[-1], batch[1]))
        evidence = {f"{name}.logits": torch.cat([t.detach().flatten() for t in logits])}
        evidence |= {f"{name}.gradients": torch.stack(gradients)} if training else {}
        return evidence | {f"{name}.runs": runs, f"{name}.new_graphs": len(self.counter.graphs) - before}

    def gradient(self, logits: Tensor, desks: Tensor) -> Tensor:
        """The gradient of the loss by all parameters, in the order of their names; zeros where there is none."""
        self.model.zero_grad()
        if logits.requires_grad:
            F.cross_entropy(logits, desks.to(self.device)).backward()
        named = sorted(self.model.named_parameters())
        return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for _, p in named])

    def operators(self, name: str, batch: tuple[Tensor, Tensor]) -> dict:
        """Which operators one more call runs, in its graph and outside."""
        self.model.train(name == "training")
        with torch.set_grad_enabled(name == "training"):
            seen = operators(lambda: self.call(batch))
        outside = [f"{n} x {op}" for op, n in sorted(seen.outside.items())]
        counts = {"inside": sum(seen.inside.values()), "outside": sum(seen.outside.values())}
        return {f"{name}.{key}": n for key, n in counts.items()} | {f"{name}.outside_are": ", ".join(outside)}


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build(device) -> nn.Module")
    compiled = function(subject, "compiled(model, backend) -> Callable[[Tensor], Tensor]")
    activity = function(subject, "activity(classifier) -> list[float]")
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    given = inputs(seed)
    torch.compiler.reset()
    model, counter = _model(build, given, device), Counter()
    bench = Bench(model, compiled(model, counter), counter, device)
    evidence = {}
    for name, batches in given.batches.items():
        evidence |= bench.regime(name, batches)
    for name in ("training", "evaluating"):
        evidence |= bench.operators(name, given.batches[f"{name}, new shapes"][-1])
    evidence |= {"graphs": len(counter.graphs), "not_of_torch_compile": sum(not g.compile_id for g in counter.graphs)}
    evidence |= {"history.graphs": torch.tensor(bench.graphs_so_far), "seen": str(counter)}
    evidence |= bench.regime("training, nothing to read", [given.nothing]) | _spoiled(bench, given)
    return evidence | {"activity": _floats(activity(bench.classifier)), "known.sizes": _graphs_for_sizes()}


def _model(build: Callable, given: Inputs, device: torch.device) -> nn.Module:
    model = build(device)
    expect(isinstance(model, nn.Module), "build", wanted="an nn.Module", got=describe(model))
    shapes = {name: list(p.shape) for name, p in model.named_parameters()}
    wanted = {name: list(p.shape) for name, p in given.parameters.items()}
    expect_tensors(shapes, wanted, "build", wanted="a model with the parameters of today, by name and shape")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(given.parameters[name])
    return model


def _spoiled(bench: Bench, given: Inputs) -> dict:
    """The logits of three messages, of which the second holds a token whose embedding is nan."""
    parameter = dict(bench.model.named_parameters())["embedding.weight"]
    parameter.data[given.spoiled] = float("nan")
    tokens = torch.full((3, 6), 1 + given.spoiled % 40)
    tokens[1, 2] = given.spoiled
    bench.model.eval()
    with torch.no_grad():
        return {"spoiled.logits": bench.call((tokens, torch.zeros(3)))}


def _floats(found) -> Tensor:
    fits = isinstance(found, list) and all(isinstance(value, float) for value in found)
    expect(fits, "activity", wanted="a list of floats", got=describe(found))
    return torch.tensor(found, dtype=torch.float64)


def _graphs_for_sizes() -> int:
    """How many graphs PyTorch's defaults make of a function called with eleven batch sizes."""
    counter = Counter()
    square = torch.compile(lambda x: x.square().sum(), backend=counter)
    for size in SIZES:
        square(torch.ones(size, 3))
    return len(counter.graphs)
