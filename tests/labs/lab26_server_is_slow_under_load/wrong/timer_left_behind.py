# wrong: test_requests_share_forwards
# A full batch goes at once, but its timer stays, and sends the next batch before its time.
"""Serve the bearing model: vibration records of wind turbines in, the scores of three kinds of wear out."""

import argparse
import asyncio
import time
from typing import Annotated

import httpx
import torch
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

CHANNELS, LONGEST, KINDS, WIDTH, LAYERS = 4, 64, 3, 32, 12

Reading = Annotated[list[float], Field(min_length=CHANNELS, max_length=CHANNELS)]


class Record(BaseModel):
    """What a turbine sends: one reading of its four sensors per second, a minute at most."""

    readings: list[Reading] = Field(min_length=1, max_length=LONGEST)


class BearingModel(nn.Module):
    """readings [B, T, 4] and padding [B, T], True where a record has ended, to scores [B, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.GRU(CHANNELS, WIDTH, LAYERS, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.weigh = nn.Linear(WIDTH, 1)
        self.score = nn.Linear(WIDTH, KINDS)

    def forward(self, readings: Tensor, padding: Tensor) -> Tensor:
        hidden = self.dropout(self.read(readings)[0])
        weight = self.weigh(hidden).squeeze(-1).masked_fill(padding, float("-inf")).softmax(dim=1)
        return self.score((weight[..., None] * hidden).sum(dim=1))


class Batcher:
    """Lets records that arrive at about the same time share a forward, and gives each caller its own answer."""

    def __init__(self, model: nn.Module, max_batch: int, max_wait: float) -> None:
        self.model, self.max_batch, self.max_wait = model.eval(), max_batch, max_wait
        self.waiting: list[tuple[Tensor, asyncio.Future]] = []
        self.at_work: set[asyncio.Task] = set()

    async def scores(self, readings: Tensor) -> Tensor:
        """The scores of one record; raises what the model raises on it."""
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self.waiting.append((readings, answer))
        if len(self.waiting) == self.max_batch:
            self.flush()
        elif len(self.waiting) == 1:
            loop.call_later(self.max_wait, self.flush)
        return await answer

    def flush(self) -> None:
        """Send what waits to the model, in a task of its own."""
        batch, self.waiting = self.waiting, []
        task = asyncio.create_task(self.serve(batch))
        self.at_work.add(task)  # asyncio itself holds a task only weakly
        task.add_done_callback(self.at_work.discard)

    async def serve(self, batch: list[tuple[Tensor, asyncio.Future]]) -> None:
        """Let the model score a batch, and hand out what came of it."""
        outcomes = await asyncio.to_thread(self.outcomes, [readings for readings, _ in batch])
        for (_, answer), outcome in zip(batch, outcomes, strict=True):
            if answer.done():  # its client has left
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

    def outcomes(self, records: list[Tensor]) -> list[Tensor | Exception]:
        """One for each record: its scores, or what the model raises on it alone."""
        try:
            return list(self.forward(records)) if records else []
        except Exception as error:
            if len(records) == 1:
                return [error]
            middle = len(records) // 2  # halves find one bad record in few forwards
            return self.outcomes(records[:middle]) + self.outcomes(records[middle:])

    @torch.inference_mode()  # here, since it holds for the thread that it is entered in
    def forward(self, records: list[Tensor]) -> Tensor:
        """Scores [B, 3] on the CPU of records of any lengths."""
        device = next(self.model.parameters()).device
        lengths = torch.tensor([len(readings) for readings in records])
        readings = pad_sequence(records, batch_first=True)
        padding = torch.arange(readings.shape[1]) >= lengths[:, None]
        return self.model(readings.to(device), padding.to(device)).cpu()


def create_app(model: nn.Module, max_batch: int, max_wait: float) -> FastAPI:
    """The service round a model: at most max_batch records in a forward, max_wait seconds for others to come."""
    batcher = Batcher(model, max_batch, max_wait)

    app = FastAPI()

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
        """Without the input, which the usual answer repeats: JSON has no nan, so it would become a 500."""
        return JSONResponse([f"{e['loc']}: {e['msg']}" for e in error.errors()], status_code=422)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/predict")
    async def predict(record: Record) -> dict[str, list[float]]:
        readings = torch.tensor(record.readings)
        if not readings.isfinite().all():  # asked of float32: 1e39 is finite until here
            raise HTTPException(422, "readings must be finite in float32")
        scores = await batcher.scores(readings)
        if not scores.isfinite().all():
            raise HTTPException(500, "the model gave no finite score")
        return {"scores": scores.tolist()}

    return app


def record(seed: int) -> dict:
    """A record of half a minute to a minute."""
    generator = torch.Generator().manual_seed(seed)
    length = int(torch.randint(LONGEST // 2, LONGEST + 1, (), generator=generator))
    return {"readings": torch.randn(length, CHANNELS, generator=generator).tolist()}


async def burst(app: FastAPI, clients: int) -> list[float]:
    """So many clients at once; the seconds after which each of them had its answer, the first to be served first."""
    records, started = [record(seed) for seed in range(clients)], 0.0

    async def ask(client: httpx.AsyncClient, seed: int) -> float:
        (await client.post("/predict", json=records[seed])).raise_for_status()
        return time.perf_counter() - started

    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://here") as client,
    ):
        await ask(client, 0)  # the first request of a process is slower than all others
        started = time.perf_counter()
        return sorted(await asyncio.gather(*(ask(client, seed) for seed in range(clients))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    torch.manual_seed(0)
    for clients in (1, 8, 64):
        model, forwards = BearingModel().to(device), []
        model.register_forward_hook(lambda *_, forwards=forwards: forwards.append(1))
        waited = asyncio.run(burst(create_app(model, max_batch=16, max_wait=0.02), clients))
        middle, worst = 1000 * waited[len(waited) // 2], 1000 * waited[-1]
        print(f"{clients:2} at once: {len(forwards) - 1:2} forwards, median {middle:3.0f} ms, worst {worst:3.0f} ms")


if __name__ == "__main__":
    main()
