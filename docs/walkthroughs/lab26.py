# %% [markdown]
# # lab26, walked through: the server is slow as soon as people use it
#
# 64 clients, 64 forwards, one after another. The fix is a queue; the work is in what may go wrong with one of a batch.
#
# This notebook judges the broken file and the fixed one, is a nuisance to both, and takes two traps apart by hand. **It
# gives the cause away.** Every number was computed when this page was built.

# %%
import asyncio
import threading

import httpx
import torch
from fastapi import FastAPI
from IPython.display import HTML, Markdown
from pydantic import BaseModel, FiniteFloat
from torch import nn

from breakfix.catalog import Catalog
from breakfix.evidence import decode
from breakfix.render import figures, tables
from breakfix.zygote import Engine

lab = Catalog.read()["lab26"]
with Engine() as engine:
    broken, fixed = (engine.judge(lab, path, seed=26) for path in (lab.starter, lab.solution))

for name, verdict in ("broken", broken), ("fixed", fixed):
    earned, possible = verdict.points
    print(f"{name:6}  {verdict.state:6}  {earned:2} of {possible} points")
print(f"torch {fixed.versions['torch']}, {fixed.device}, seed 26")

# %% [markdown]
# ## The evidence
#
# One line per check: the figure on which the broken file failed.

# %%
Markdown(tables.markdown(tables.deciding(tables.rows(broken, fixed))))

# %% [markdown]
# ## Who got which status
#
# Seven records and thirteen bodies that are none, mixed. Then two records among sixteen on which the model raises, and
# one among eight to which it gives nan. Each status, and how many got it.

# %%
evidence = {name: decode(v.frame) for name, v in (("broken", broken), ("fixed", fixed))}
for name, found in evidence.items():
    for wave in ("mixed", "poisoned", "blind", "broken", "after the faults"):
        status, count = torch.tensor(found[f"{wave}.status"]).unique(return_counts=True)
        print(f"{name:6}  {wave:17}", dict(zip(status.tolist(), count.tolist(), strict=True)))

# %% [markdown]
# The broken file fails nobody but the sender, since nobody shares anything. But it says 500 where the sender was at
# fault, and 200 with a `null` where the model gave nan.
#
# ## Which thread is in inference mode
#
# The mode belongs to a thread. A coroutine enters it in the loop's thread, and the model runs in another.


# %%
async def where() -> None:
    model, record = nn.Linear(2, 1), torch.ones(1, 2)
    with torch.inference_mode():
        outside = await asyncio.to_thread(model, record)
    inside = await asyncio.to_thread(torch.inference_mode()(model.forward), record)
    print("mode round the await:       the scores have a graph:", outside.requires_grad)
    print("mode in the thread's call:  the scores have a graph:", inside.requires_grad)


def in_a_thread(work) -> None:  # the notebook has a loop of its own
    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    thread.join()


in_a_thread(where)

# %% [markdown]
# ## A refusal that cannot be sent
#
# The schema takes finite numbers only. What does it do with nan, and what is 1e39?

# %%
app = FastAPI()


class One(BaseModel):
    reading: FiniteFloat


@app.post("/")
async def read(one: One) -> dict[str, list[float]]:
    return {"as float32": torch.tensor([one.reading]).tolist()}


async def refused() -> None:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    json = {"content-type": "application/json"}
    async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=json) as client:
        for number in ("0.5", "NaN", "1e39"):
            reply = await client.post("/", content=f'{{"reading": {number}}}')
            print(f"{number:5} {reply.status_code}  {reply.text}")


in_a_thread(refused)

# %%
HTML(figures.draw(lab, evidence["broken"], evidence["fixed"]))
