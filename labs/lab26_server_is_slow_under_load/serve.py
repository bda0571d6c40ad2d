"""Serve the bearing model: vibration records of wind turbines in, the scores of three kinds of wear out."""

import argparse
import asyncio
import time
from typing import Annotated

import httpx
import torch
from fastapi import FastAPI
from pydantic import BaseModel, Field
from torch import Tensor, nn

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


def create_app(model: nn.Module, max_batch: int, max_wait: float) -> FastAPI:
    """The service round a model; max_batch and max_wait are settings that the platform hands to every service."""
    app = FastAPI()
    device = next(model.parameters()).device
    model.eval()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/predict")
    async def predict(record: Record) -> dict[str, list[float]]:
        readings = torch.tensor([record.readings], device=device)
        padding = torch.zeros(readings.shape[:2], dtype=torch.bool, device=device)
        with torch.inference_mode():
            scores = model(readings, padding)
        return {"scores": scores[0].tolist()}

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
