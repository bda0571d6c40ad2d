"""Measure lab26: put an app round a model that we watch, and be its clients, well-behaved and other."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import torch
from torch import Tensor, nn

from breakfix.contract import Contract, describe, expect, function

CHANNELS, LONGEST, KINDS, WIDTH = 4, 64, 3, 16
LOADS = (1, 2, 4, 8, 16, 32)  # requests at once, with at most LOAD_BATCH in a forward
LOAD_BATCH = 8
SHORT, NEVER = 0.4, 3600.0  # seconds: of max_wait where a batch may stay short, and where only a full one may go
LONG = 1.5  # seconds of max_wait, where a timer may outlive its batch
PATIENCE, LATER = 6.0, 1.5  # seconds until a request counts as unanswered, and once one was; right servers take a tenth
HELD = 3.0  # seconds that the model holds a forward at most, for an app that cannot do anything else meanwhile
TRICKLE = 40  # requests, one each TICK seconds, with a max_wait of six ticks
TICK = 0.05
NUMBERS = ("NaN", "Infinity", "-Infinity", "1e39", "-7e120")  # the last two are finite until they are float32
TOLERANCE = {"cpu": 1e-4, "cuda": 1e-3}  # relative error of an answer; right ones reach 1e-6 on a CPU, wrong ones 0.02


class Scorer(nn.Module):
    """The reference: readings [B, T, 4] and padding [B, T], True after a record's end, to scores [B, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.GRU(CHANNELS, WIDTH, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.weigh = nn.Linear(WIDTH, 1)
        self.score = nn.Linear(WIDTH, KINDS)

    def forward(self, readings: Tensor, padding: Tensor) -> Tensor:
        hidden = self.dropout(self.read(readings)[0])
        weight = self.weigh(hidden).squeeze(-1).masked_fill(padding, float("-inf")).softmax(dim=1)
        return self.score((weight[..., None] * hidden).sum(dim=1))


@dataclass(frozen=True)
class Inputs:
    """The weights, the records [T, 4] of each wave, bodies that must be refused, and where they are mixed in."""

    weights: dict[str, Tensor]
    waves: dict[str, list[Tensor]]
    max_batch: int  # of the wave "many"
    bad: list[str]
    order: list[int]  # of the wave "mixed": below len(waves["mixed"]) a record, from there on a bad one
    poison: float  # the first reading of a record on which the model raises
    blind: float  # the first reading of a record to which the model gives nan


def inputs(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    many, max_batch = _between(33, 47, g), _between(5, 12, g)
    counts = {f"{load} at once": load for load in LOADS} | {"many": many, "full": 2 * LOAD_BATCH, "one by one": 9}
    counts |= {"trickle": TRICKLE, "mixed": 7, "after the bad": 6, "poisoned": 16, "blind": 8, "broken": 8}
    counts |= {"after the faults": 8, "left waiting": 5, "held": 8, "after the leavers": 5}
    weights = {name: _weight(name, value.shape, g) for name, value in Scorer().state_dict().items()}
    waves = {name: [_record(g) for _ in range(count)] for name, count in counts.items()}
    bad = _bad(g)
    order = torch.randperm(len(bad) + counts["mixed"], generator=g).tolist()
    marks = (10 + torch.rand(2, generator=g)).tolist()  # no other reading is that large
    waves["poisoned"][_between(0, 7, g)][0, 0] = waves["poisoned"][_between(8, 15, g)][0, 0] = marks[0]
    waves["blind"][_between(0, 7, g)][0, 0] = marks[1]
    waves["after a full one"] = [_record(g) for _ in range(8)]
    waves["first left"] = waves["after the leavers"][:3]
    return Inputs(weights, waves, max_batch, bad, order, *marks)


def _weight(name: str, shape: torch.Size, g: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=g) * (
        0.2 if "_hh_" in name else 0.8
    )  # more would be chaos, and blow up rounding


def _between(low: int, high: int, g: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (), generator=g))


def _record(g: torch.Generator) -> Tensor:
    return torch.randn(_between(1, LONGEST, g), CHANNELS, generator=g).clamp(-6, 6)


def _bad(g: torch.Generator) -> list[str]:
    """Bodies that are no records, each for another reason."""

    def body(readings: object) -> str:
        return json.dumps({"readings": readings})

    good = [_record(g).tolist() for _ in range(4)]
    places = [(_between(0, 3, g), number) for number in NUMBERS]
    numbers = [body([[9.0] * p + [1234.5] + [9.0] * (3 - p)] * 3).replace("1234.5", n, 1) for p, n in places]
    shapes = [
        body([row[:-1] for row in good[0]]),
        body([[*row, 0.0] for row in good[1]]),
        body([*good[2][: LONGEST - 1], good[2][0][:2]]),
        body([]),
        body([[0.0] * CHANNELS] * (LONGEST + _between(1, 9, g))),
        body([["high", 0.0, 0.0, 0.0]]),
        json.dumps({"values": good[3]}),
        "readings",
    ]
    return numbers + shapes


# ------------------------------------------------------------------------------------------------------ what is watched


@dataclass
class Log:
    """What the model saw: shared with every copy of it, so that a copy is watched too."""

    rows: list[int] = field(default_factory=list)  # of each forward
    training: int = 0  # forwards in training mode
    graphs: int = 0  # forwards whose scores could be differentiated
    breach: str = ""

    def __deepcopy__(self, memo: dict) -> "Log":
        return self


class Watched(nn.Module):
    """A Scorer that counts its forwards, and can be told to fail or to take its time."""

    def __init__(self, given: Inputs) -> None:
        super().__init__()
        self.scorer, self.log, self.given = Scorer(), Log(), given
        self.scorer.load_state_dict(given.weights)
        self.broken, self.gate = False, Gate()

    def forward(self, readings: Tensor, padding: Tensor) -> Tensor:
        self._note(readings, padding)
        self.gate.pass_through()
        if self.broken:
            raise RuntimeError("the accelerator does not answer")
        if not readings[~padding].isfinite().all():
            raise ValueError("readings are not finite")
        first = readings[:, 0, 0]
        if (first == torch.tensor(self.given.poison)).any():
            raise RuntimeError("no solution found")
        scores = self.scorer(readings, padding)
        self.log.graphs += scores.requires_grad
        return scores.masked_fill((first == torch.tensor(self.given.blind))[:, None], float("nan"))

    def _note(self, readings: Tensor, padding: Tensor) -> None:
        self.log.rows.append(len(readings))
        self.log.training += self.training or self.scorer.training
        fits = readings.ndim == 3 and readings.shape[2] == CHANNELS and readings.dtype == torch.float32
        if not (fits and padding.shape == readings.shape[:2] and padding.dtype == torch.bool):
            self.log.breach = f"{describe(readings)} and {describe(padding)}"
            raise TypeError(self.log.breach)


class Gate:
    """Holds one forward until it is opened, HELD seconds at most."""

    def __init__(self) -> None:
        self.entered, self.open, self.closed, self.in_time = threading.Event(), threading.Event(), False, False

    def __deepcopy__(self, memo: dict) -> "Gate":
        return self

    def pass_through(self) -> None:
        if self.closed:
            self.closed = False
            self.entered.set()
            self.in_time = self.open.wait(HELD)


# ---------------------------------------------------------------------------------------------------- being its clients


@dataclass(frozen=True)
class Server:
    """An app that runs, the model in it, and a client of it."""

    model: Watched
    client: httpx.AsyncClient

    async def ask(self, body: str) -> tuple[int, list[float] | None]:
        """(status, scores); no scores where what came is not [3] numbers."""
        reply = await self.client.post("/predict", content=body, headers={"content-type": "application/json"})
        try:
            scores = [float(score) for score in reply.json()["scores"]]
        except (ValueError, KeyError, TypeError):
            scores = []
        return reply.status_code, scores if len(scores) == KINDS else None

    def send(self, record: Tensor | str) -> asyncio.Task:
        body = record if isinstance(record, str) else json.dumps({"readings": record.tolist()})
        return asyncio.create_task(self.ask(body))


@asynccontextmanager
async def serving(bench: "Bench", max_batch: int, max_wait: float) -> AsyncIterator[Server]:
    """An app of the subject's, started as a server would start it."""
    model = Watched(bench.given).to(bench.device).train()  # as the trainer has left it
    app = bench.create_app(model, max_batch, max_wait)
    expect(callable(app), "create_app", wanted="a FastAPI application", got=describe(app))
    life = Life(app)
    await life.turn("startup")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://bearings", timeout=None) as client:
        yield Server(model, client)
    await life.turn("shutdown")
    bench.seen.append(model.log)
    if model.log.breach:
        told = f"readings [B, T, {CHANNELS}] float32 and padding [B, T] bool"
        raise Contract(f"the app must call model(readings, padding) with {told}; it called it with {model.log.breach}")


class Life:
    """An app's lifespan, in a task of its own; an app without one is fine."""

    def __init__(self, app: Callable) -> None:
        self.inbox: asyncio.Queue = asyncio.Queue()
        self.done: asyncio.Queue = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
        self.task = asyncio.create_task(app(scope, self.inbox.get, self.done.put))

    async def turn(self, to: str) -> None:
        """Ask for `startup` or `shutdown` and wait until it is done, or until the app has gone its own way."""
        await self.inbox.put({"type": f"lifespan.{to}"})
        said = asyncio.create_task(self.done.get())
        await asyncio.wait([said, self.task], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        said.cancel()


@dataclass
class Bench:
    """What every scenario needs."""

    create_app: Callable
    given: Inputs
    device: torch.device
    seen: list[Log] = field(default_factory=list)
    patience: float = PATIENCE


async def answers(tasks: list[asyncio.Task], name: str, bench: Bench) -> dict:
    """Status and scores of each request; status 0 where no answer came in time, or an exception."""
    _, pending = await asyncio.wait(tasks, timeout=bench.patience)
    bench.patience = LATER if pending else bench.patience
    for task in pending:
        task.cancel()
    came = [(0, None) if t in pending or t.cancelled() or t.exception() else t.result() for t in tasks]
    scores = torch.tensor([scores or [float("nan")] * KINDS for _, scores in came])
    return {f"{name}.status": torch.tensor([status for status, _ in came]), f"{name}.scores": scores}


async def wave(server: Server, bench: Bench, name: str, between: float = 0.0) -> dict:
    """The requests of one wave, at once or with a pause after each, and the forwards that they cost."""
    before, tasks = len(server.model.log.rows), []
    for record in bench.given.waves[name]:
        tasks.append(server.send(record))
        if between:
            await asyncio.sleep(between)
    found = await answers(tasks, name, bench)
    rows = server.model.log.rows[before:]
    return found | {f"{name}.forwards": len(rows), f"{name}.rows": sum(rows), f"{name}.largest": max(rows, default=0)}


async def loads(bench: Bench) -> dict:
    """Bursts of several sizes, a last batch that stays short, full batches that must not wait, and one by one."""
    found = {}
    async with serving(bench, LOAD_BATCH, SHORT) as server:
        for load in LOADS:
            found |= await wave(server, bench, f"{load} at once")
    async with serving(bench, bench.given.max_batch, SHORT) as server:
        found |= await wave(server, bench, "many")
    async with serving(bench, LOAD_BATCH, NEVER) as server:
        found |= await wave(server, bench, "full")
    async with serving(bench, 3, NEVER) as server:
        found |= await wave(server, bench, "one by one", between=TICK)
    return found | {"forwards": torch.tensor([found[f"{load} at once.forwards"] for load in LOADS])}


async def trickle(bench: Bench) -> dict:
    """Requests that never stop coming: how many were sent before the first was answered?"""
    tasks = []
    async with serving(bench, 10 * TRICKLE, 6 * TICK) as server:
        for record in bench.given.waves["trickle"]:
            tasks.append(server.send(record))
            await asyncio.sleep(TICK)
            if tasks[0].done():
                break
        return await answers(tasks, "trickle", bench) | {"trickle.sent": len(tasks)}


async def anew(bench: Bench) -> dict:
    """Four requests fill a batch. When its time would be up two more wait, and then come the two that they wait for."""
    name, tasks, pauses = "after a full one", [], {3: 0.8 * LONG, 5: 0.4 * LONG}
    async with serving(bench, 4, LONG) as server:
        for place, record in enumerate(bench.given.waves[name]):
            tasks.append(server.send(record))
            await asyncio.sleep(pauses.get(place, 0.0))
        return await answers(tasks, name, bench) | {f"{name}.forwards": len(server.model.log.rows)}


async def bad(bench: Bench) -> dict:
    """Good requests and bad ones mixed; then good ones."""
    records = [*bench.given.waves["mixed"], *bench.given.bad]
    async with serving(bench, LOAD_BATCH, SHORT) as server:
        mixed = await answers([server.send(records[i]) for i in bench.given.order], "mixed", bench)
        return mixed | await wave(server, bench, "after the bad")


async def faults(bench: Bench) -> dict:
    """A model that fails on two records, that gives nan to one, that fails on all; then a sound one."""
    async with serving(bench, LOAD_BATCH, SHORT) as server:
        found = await wave(server, bench, "poisoned") | await wave(server, bench, "blind")
        server.model.broken = True
        found |= await wave(server, bench, "broken")
        server.model.broken = False
        return found | await wave(server, bench, "after the faults")


async def leavers(bench: Bench) -> dict:
    """Clients that leave: one that waits for others, one for whom others wait, one
    whose record is in the model. Meanwhile: is anybody there?"""
    async with serving(bench, 4, SHORT) as server:
        waiting = [server.send(record) for record in bench.given.waves["left waiting"][:3]]
        await asyncio.sleep(TICK)
        waiting.pop(1).cancel()
        waiting += [server.send(record) for record in bench.given.waves["left waiting"][3:]]
        found = await answers(waiting, "left waiting", bench)
        followers = [server.send(record) for record in bench.given.waves["first left"]]
        await asyncio.sleep(TICK)
        followers.pop(0).cancel()
        found |= await answers(followers, "first left", bench)
        found |= await held(server, bench)
        return found | await wave(server, bench, "after the leavers")


async def held(server: Server, bench: Bench) -> dict:
    """While the model holds a forward: the health of the server, a client that leaves, and four that come."""
    gate = server.model.gate
    gate.closed = True
    tasks = [server.send(record) for record in bench.given.waves["held"][:4]]
    for _ in range(int(bench.patience / TICK)):
        await asyncio.sleep(TICK)
        if gate.entered.is_set():
            break
    health = asyncio.create_task(server.client.get("/health"))
    await asyncio.wait([health], timeout=HELD / 2)
    status = health.result().status_code if health.done() and not health.exception() else 0
    tasks.pop(1).cancel()
    tasks += [server.send(record) for record in bench.given.waves["held"][4:]]
    await asyncio.sleep(TICK)
    gate.open.set()
    found = await answers(tasks, "held", bench)
    came = status == 200 and gate.in_time
    return found | {"held.health": status, "held.health_came": "at once" if came else "after the forward"}


async def thread_has_grad() -> str:
    """Whether a thread of its own asks for gradients although its caller does not."""
    with torch.inference_mode():
        return "yes" if await asyncio.to_thread(torch.is_grad_enabled) else "no"


async def _all(bench: Bench) -> dict:
    found = {"thread.grad": await thread_has_grad()}
    for scenario in (loads, trickle, anew, bad, faults, leavers):
        found |= await scenario(bench)
    return found


def measure(subject, seed: int, device: torch.device) -> dict:
    create_app = function(subject, "create_app(model, max_batch, max_wait) -> FastAPI")
    if device.type == "cuda":  # not run on a GPU yet
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    bench = Bench(create_app, inputs(seed), device)
    loop = asyncio.new_event_loop()
    try:
        evidence = loop.run_until_complete(_all(bench))
    finally:
        asyncio.set_event_loop(None)  # not closed: that would wait for whatever a subject has left in a thread
    return evidence | {
        "graphs": sum(log.graphs for log in bench.seen),
        "training": sum(log.training for log in bench.seen),
        "largest.bad": _status_of(evidence, bench.given, "1e39"),
    }


def _status_of(evidence: dict, given: Inputs, number: str) -> int:
    """The status that the request with this number got."""
    place = given.order.index(len(given.waves["mixed"]) + NUMBERS.index(number))
    return int(evidence["mixed.status"][place])
