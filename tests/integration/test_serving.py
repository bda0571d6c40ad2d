"""lab26's solution over real HTTP: uvicorn on loopback, requests at once, a bad one, a client that hangs up."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
import torch

from breakfix import subject
from breakfix.catalog import Catalog

httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

LAB = Catalog.read()["lab26"]


@pytest.fixture(scope="module")
def serve():
    return subject.load(LAB.solution.read_bytes(), str(LAB.solution))


@asynccontextmanager
async def served(app):
    """A client of `app`, which uvicorn serves in a thread on a port that the system chose."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "uvicorn did not start"
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield client
    server.should_exit = True
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()


def watched(serve):
    """A model, and the number of records in each of its forwards."""
    torch.manual_seed(0)
    model, rows = serve.BearingModel().eval(), []
    model.register_forward_hook(lambda _, given, __: rows.append(len(given[0])))
    return model, rows


def alone(model, record):
    readings = torch.tensor([record["readings"]])
    with torch.no_grad():
        return model(readings, torch.zeros(readings.shape[:2], dtype=torch.bool))[0].tolist()


def test_a_burst_shares_forwards_and_everybody_gets_their_own(serve):
    model, rows = watched(serve)
    records = [serve.record(seed) for seed in range(20)]

    async def ask():
        async with served(serve.create_app(model, max_batch=8, max_wait=1.0)) as client:
            posts = [client.post("/predict", json=record) for record in records]
            return await asyncio.gather(*posts, client.get("/health"))

    *replies, health = asyncio.run(ask())
    assert health.status_code == 200
    assert len(rows) <= 4
    assert max(rows) <= 8
    for record, reply in zip(records, replies, strict=True):
        assert reply.json()["scores"] == pytest.approx(alone(model, record), abs=1e-5)


def test_neither_a_bad_request_nor_a_client_that_hangs_up_hurts_the_others(serve):
    model, _ = watched(serve)
    record = serve.record(1)

    async def ask():
        async with served(serve.create_app(model, max_batch=8, max_wait=1.0)) as client:
            with pytest.raises(httpx.ReadTimeout):  # hangs up while its record waits for others
                await client.post("/predict", json=record, timeout=httpx.Timeout(60, read=0.2))
            bad = client.post("/predict", content='{"readings": [[NaN, 0, 0, 0]]}')
            return await asyncio.gather(client.post("/predict", json=record), bad, client.post("/predict", json=record))

    replies = asyncio.run(ask())
    assert [reply.status_code for reply in replies] == [200, 422, 200]
    assert replies[0].json()["scores"] == pytest.approx(alone(model, record), abs=1e-5)
