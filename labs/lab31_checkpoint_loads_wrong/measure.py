"""Measure lab31: load checkpoints of several makings, look into each block, then freeze some and train a step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from breakfix.contract import describe, expect, function

BLOCKS, WIDTH, ADAPTER, ADAPTER_AT, READINGS = 50, 8, "adapter", 3, 16
SIZE = WIDTH * WIDTH + WIDTH  # numbers in a block
NAMES = {1: [str(place) for place in range(BLOCKS)]}
NAMES[2] = [*NAMES[1][:ADAPTER_AT], ADAPTER, *NAMES[1][ADAPTER_AT:]]
PREFIXES = {
    "plain": "",
    "DDP": "module.",
    "compiled": "_orig_mod.",
    "DDP of compiled": "module._orig_mod.",
    "compiled DDP": "_orig_mod.module.",
}
FROZEN = {"one digit": ["1"], "two digits": ["17", "40"], "the adapter": [ADAPTER], "none": []}


@dataclass(frozen=True)
class Inputs:
    """The weights of every block, what goes in, and blocks to freeze by regime."""

    weights: dict[str, Tensor]  # by the block's name: [SIZE], the adapter's too
    readings: Tensor
    frozen: dict[str, list[str]]
    broken_at: int


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    weights = {name: 0.6 * torch.randn(SIZE, generator=g) for name in NAMES[2]}
    order = torch.randperm(BLOCKS, generator=g).tolist()
    frozen = FROZEN | {"several": [ADAPTER, "2", *map(str, order[:4])]}
    readings = torch.randn(READINGS, WIDTH, generator=g)
    return Inputs(weights, readings, frozen, int(torch.randint(4, BLOCKS - 1, (), generator=g)))


def checkpoint(given: Inputs, prefix: str = "") -> dict[str, Tensor]:
    """What version 1 has saved: blocks by their place, as nn.Sequential numbers them."""
    state = {}
    for name in NAMES[1]:
        weight, bias = given.weights[name].split([WIDTH * WIDTH, WIDTH])
        state[f"{prefix}{name}.linear.weight"] = weight.reshape(WIDTH, WIDTH).clone()
        state[f"{prefix}{name}.linear.bias"] = bias.clone()
    return state


def answers(weights: list[Tensor], readings: Tensor) -> list[Tensor]:
    """What each block answers, in the order of the blocks."""
    found = []
    for one in weights:
        weight, bias = one.split([WIDTH * WIDTH, WIDTH])
        readings = readings + 0.3 * torch.tanh(readings @ weight.reshape(WIDTH, WIDTH).T + bias)
        found.append(readings)
    return found


def unfit(given: Inputs) -> dict[str, dict[str, Tensor]]:
    """States that are none of version 1's: each raises."""
    whole, at = checkpoint(given), given.broken_at
    ours, others = f"{at}.linear.weight", {key: torch.zeros(WIDTH, WIDTH) for key in ("52.linear.weight",)}
    renamed = {("head.weight" if key == ours else key): value for key, value in whole.items()}
    return {
        "a weight is missing": {key: value for key, value in whole.items() if key != ours},
        "the last block is missing": {key: value for key, value in whole.items() if not key.startswith("49.")},
        "a weight too many": whole | others,
        "a weight by another name": renamed,
        "a wider block": whole | {ours: torch.zeros(WIDTH + 1, WIDTH)},
        "as many numbers in another shape": whole | {ours: whole[ours].reshape(WIDTH // 2, 2 * WIDTH)},
        "names of another model": {f"tower.{key}": value for key, value in whole.items()},
        "nothing": {},
    }


def measure(subject, seed: int, device: torch.device) -> dict:
    bench = Bench(
        function(subject, "build(version, device) -> nn.Module"),
        function(subject, "block(model, name) -> nn.Module"),
        function(subject, "load(model, state) -> None"),
        function(subject, "freeze(model, names) -> None"),
        inputs(seed),
        device,
    )
    evidence = _loaded(bench) | _refused(bench) | _frozen(bench) | _hooked(bench)
    own = torch.stack([bench.given.weights[name] for name in NAMES[1]])
    got = evidence["version 2, plain.weights"][[place for place, name in enumerate(NAMES[2]) if name != ADAPTER]]
    off = (got - own).norm(dim=1) / own.norm(dim=1)
    return evidence | {"off": off, "off.count": int((off > 0).sum())}


@dataclass(frozen=True)
class Bench:
    """The subject's four functions and what they are tried on."""

    build: Callable
    block: Callable
    load: Callable
    freeze: Callable
    given: Inputs
    device: torch.device

    def model(self, version: int) -> nn.Module:
        """A new model, its blocks there by name."""
        model = self.build(version, self.device)
        expect(isinstance(model, nn.Module), "build", wanted="an nn.Module", got=describe(model))
        return model

    def parts(self, model: nn.Module, version: int) -> dict[str, nn.Module]:
        parts = {name: self.block(model, name) for name in NAMES[version]}
        for part in parts.values():
            sizes = [p.numel() for p in part.parameters()] if isinstance(part, nn.Module) else describe(part)
            expect(sizes == [WIDTH * WIDTH, WIDTH], "block", wanted="a block: a weight and a bias", got=str(sizes))
        return parts

    def weights(self, model: nn.Module, version: int) -> Tensor:
        """What each block has, [blocks, SIZE], in the order of their names."""
        parts = self.parts(model, version).values()
        return torch.stack([nn.utils.parameters_to_vector(part.parameters()).detach().cpu() for part in parts])

    def filled(self, version: int) -> nn.Module:
        """A model that was given each block's own weights by hand."""
        model = self.model(version)
        for name, part in self.parts(model, version).items():
            own = self.given.weights[name].clone().to(self.device)  # not a view of what the next model is given
            nn.utils.vector_to_parameters(own, part.parameters())
        return model


def _found(bench: Bench, model: nn.Module, version: int, raised: str) -> dict:
    with torch.no_grad():
        answer = model(bench.given.readings.to(bench.device)).cpu()
    return {"weights": bench.weights(model, version), "answer": answer, "raised": raised}


def _tried(bench: Bench, model: nn.Module, state: dict[str, Tensor]) -> str:
    """Load, and say what was raised."""
    try:
        bench.load(model, state)
    except Exception as error:
        return type(error).__name__
    return ""


def _loaded(bench: Bench) -> dict:
    """Version 1's checkpoints in both versions, and version 2's own, each saved in several ways."""
    found = {}
    tuned = bench.filled(2).state_dict()
    for name, prefix in PREFIXES.items():
        for version in (1, 2):
            model = bench.model(version)
            raised = _tried(bench, model, checkpoint(bench.given, prefix))
            found[f"version {version}, {name}"] = _found(bench, model, version, raised)
        model = bench.model(2)
        raised = _tried(bench, model, {prefix + key: value.clone() for key, value in tuned.items()})
        found[f"version 2's own, {name}"] = _found(bench, model, 2, raised)
    model = bench.filled(2)
    state = checkpoint(bench.given)
    raised = _tried(bench, model, state)
    for value in state.values():
        value.zero_()  # whoever goes on with the checkpoint: it was read, not taken over
    found["version 2, tuned"] = _found(bench, model, 2, raised)
    return {f"{case}.{key}": value for case, parts in found.items() for key, value in parts.items()}


def _refused(bench: Bench) -> dict:
    """What does not fit, and how far a model that refused it has moved."""
    raised, moved = [], []
    cases = [(version, name, state) for name, state in unfit(bench.given).items() for version in (1, 2)]
    tuned = bench.filled(2).state_dict()
    bias = bench.given.weights[ADAPTER][WIDTH * WIDTH :]
    without = {key: value for key, value in tuned.items() if not torch.equal(value.cpu().flatten(), bias)}
    cases += [(1, "version 2's", tuned), (2, "version 2's without the adapter's bias", without)]
    for version, name, state in cases:
        model = bench.model(version)
        before = bench.weights(model, version)
        if not _tried(bench, model, state):
            raised.append(f"{name}, version {version}")
        if not torch.equal(bench.weights(model, version), before):
            moved.append(f"{name}, version {version}")
    return {"taken": raised, "moved": moved}


def _frozen(bench: Bench) -> dict:
    """Which blocks a step of training leaves as they were, after each of several freezings of one model."""
    model, found = bench.filled(2), {}
    for regime, names in bench.given.frozen.items():
        bench.freeze(model, names)
        model.zero_grad()  # an old gradient would move a frozen block too
        before = bench.weights(model, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        loss = model(bench.given.readings.to(bench.device)).square().mean()
        loss.backward()
        optimizer.step()
        still = (bench.weights(model, 2) == before).all(dim=1)
        found[f"frozen.{regime}"] = [name for name, same in zip(NAMES[2], still.tolist(), strict=True) if same]
    unknown = ""
    try:
        bench.freeze(model, ["99"])
    except Exception as error:
        unknown = type(error).__name__
    return found | {"frozen.by_1": len(found["frozen.one digit"]), "frozen.unknown": unknown}


def _hooked(bench: Bench) -> dict:
    """What each block answers, by a hook on the block of that name."""
    model, seen = bench.filled(2), {}

    def note(name: str) -> Callable:
        def look(module: nn.Module, given: Any, answer: Tensor) -> None:
            seen[name] = answer.detach().cpu()

        return look

    for name, part in bench.parts(model, 2).items():
        part.register_forward_hook(note(name))
    with torch.no_grad():
        model(bench.given.readings.to(bench.device))
    nothing = torch.zeros(READINGS, WIDTH)
    return {"hooked": torch.stack([seen.get(name, nothing) for name in NAMES[2]])}
