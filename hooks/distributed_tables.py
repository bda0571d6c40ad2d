"""The tables of docs/distributed.md: what ranks send and keep, from 2 to 1024, counted on the labs' own files.

    python hooks/distributed_tables.py                    writes them into the page, between its markers
    python hooks/distributed_tables.py --check [PAGE ...] names the pages whose tables are others; then it exits with 1

Each file trains a few steps as one rank of a simulated group: nothing is sent, the sizes are real. What the messages of
a step cost on a link is modelled by `breakfix.probes.traffic.modelled_seconds`, as in lab20. A test compares the page.
"""

import argparse
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

from breakfix.probes.shards import RankCard, simulated
from breakfix.probes.traffic import LINKS, Collective, Link, modelled_seconds, sent_bytes

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "distributed.md"
RANKS = (2, 4, 8, 16, 64, 256, 1024)
LAB20, LAB22 = "lab20_two_cards_no_faster", "lab22_more_cards_same_memory"
SYNCHRONISED = {  # what the page calls a way to train: the file
    "lab20, broken": f"labs/{LAB20}/train.py",
    "lab20, fixed": f"solutions/{LAB20}/train.py",
}
SHARDED = {
    "lab22, broken: data parallel": f"labs/{LAB22}/train.py",
    "lab22, ZeRO-1": f"tests/labs/{LAB22}/right/zero_redundancy.py",
    "lab22, fixed: `fully_shard`": f"solutions/{LAB22}/train.py",
}


@dataclass(frozen=True)
class Step:
    """One settled step of rank 0: its collectives, the bytes that it keeps afterwards, those of the parameters (P)."""

    collectives: tuple[Collective, ...]
    kept: int
    parameters: int


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="write nothing, name the pages that are stale")
    parser.add_argument("pages", nargs="*", type=Path, default=[PAGE])
    arguments = parser.parse_args()
    texts = {page: page.read_text("utf-8") for page in arguments.pages}
    stale = {page: new for page, text in texts.items() if (new := filled(text)) != text}
    for page, text in stale.items():
        print(page)
        if not arguments.check:
            page.write_text(text, "utf-8")
    return int(arguments.check and bool(stale))


def filled(page: str) -> str:
    """The page with its tables as they are computed now."""
    for name, table in TABLES.items():
        pattern = rf"(<!-- {name}: .*?-->\n).*?(<!-- end -->)"
        page, count = re.subn(pattern, lambda m, t=table: f"{m[1]}\n{t()}\n\n{m[2]}", page, flags=re.S)
        assert count == 1, f"the page must have one marker <!-- {name}: ... --> and <!-- end --> after it"
    return page


# ----------------------------------------------------------------------------------------------------------- the tables


def sent_table() -> str:
    """Messages and bytes of a step on the fewest and on the most ranks, for every file."""
    rows, ends = [], (RANKS[0], RANKS[-1])
    for way in (*SYNCHRONISED, *SHARDED):
        steps = [step_of(way, ranks) for ranks in ends]
        sent = [sum(sent_bytes(c, n) for c in step.collectives) for step, n in zip(steps, ends, strict=True)]
        shares = [f"{size / step.parameters:.2f} P" for size, step in zip(sent, steps, strict=True)]
        rows.append([way, f"{steps[0].parameters / 1e6:.1f} MB", *(str(len(s.collectives)) for s in steps), *shares])
    return _table(["", "P", *(f"{what}, {n} ranks" for what in ("messages", "sent") for n in ends)], rows)


def kept_table() -> str:
    """What rank 0 keeps between steps, in P, by ranks."""
    rows = [
        [way, *(f"{step.kept / step.parameters:.3f}" for step in (step_of(way, ranks) for ranks in RANKS))]
        for way in SHARDED
    ]
    return _table(["ranks", *map(str, RANKS)], rows)


def seconds_table(ways: Iterable[str]) -> str:
    """Modelled milliseconds that a step spends on messages, by link, file and ranks."""
    rows = [
        [link.name.partition(",")[0], way, *(_milliseconds(step_of(way, ranks), ranks, link) for ranks in RANKS)]
        for link in LINKS
        for way in ways
    ]
    return _table(["link", "ranks", *map(str, RANKS)], rows)


TABLES: dict[str, Callable[[], str]] = {
    "sent": sent_table,
    "kept": kept_table,
    "lab20": partial(seconds_table, SYNCHRONISED),
    "lab22": partial(seconds_table, SHARDED),
}


def _milliseconds(step: Step, ranks: int, link: Link) -> str:
    return f"{float(f'{1e3 * modelled_seconds(step.collectives, ranks, link):.3g}'):g}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    rule = ["--:" if re.search(r"\d", title) else "---" for title in head]  # numbers to the right
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


# ------------------------------------------------------------------------------------------------------------ the steps


@cache
def step_of(way: str, ranks: int) -> Step:
    """A settled step of rank 0 of `ranks`."""
    return _synchronised(way, ranks) if way in SYNCHRONISED else _sharded(way, ranks)


def _synchronised(way: str, ranks: int) -> Step:
    """A step of lab20's file: four micro-batches, after DDP has settled its buckets."""
    file = _load(SYNCHRONISED[way])
    with simulated(ranks) as log, _quiet():
        model = file.Tagger()
        size = sum(p.nbytes for p in model.parameters())
        module = file.wrap(model, dist.group.WORLD)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        batches = [(torch.ones(1, 256), torch.zeros(1, dtype=torch.int64))] * 4
        for _ in range(3):
            start = len(log)
            file.train_step(module, optimizer, batches, dist.group.WORLD)
        return Step(tuple(log[start:]), 0, size)


def _sharded(way: str, ranks: int) -> Step:
    """A step of a file of lab22, after the first have made the state and settled the buckets."""
    file = _load(SHARDED[way])
    with simulated(ranks) as log, RankCard("cpu") as card, _quiet():
        model = file.Encoder(width=1024, depth=4)  # wide enough for 1024 ranks to get a row each
        card.add(model)
        size = sum(p.nbytes for p in model.parameters())
        trainer = file.Trainer(model, dist.group.WORLD, lr=1e-3, max_norm=1.0)
        del model
        for _ in range(3):
            start = len(log)
            trainer.step(torch.ones(1, 64), torch.zeros(1, dtype=torch.int64))
            card.end_step()
        return Step(tuple(log[start:]), card.in_use, size)


def _quiet() -> warnings.catch_warnings:
    """For what DDP says of find_unused_parameters: it is the broken file's fault, and known."""
    return warnings.catch_warnings(action="ignore")


@cache
def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
