"""Orders as pydantic models through all four brokers: ``uvicorn examples.fastapi_models:app``.

The models are nested, optional, aliased and unions. What one endpoint writes, another reads
as the same model, and other programs see the JSON that the models' schemas describe.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel, Field

import nexo
from nexo.integrations.asgi import Nexo


class Address(BaseModel):
    street: str = Field(alias="streetName")
    city: str | None = None


class Card(BaseModel):
    kind: Literal["card"] = "card"
    last_four: str = Field(alias="lastFour")


class Invoice(BaseModel):
    kind: Literal["invoice"] = "invoice"
    days: int = 30
    to: Address | None = None


class Line(BaseModel):
    item: str
    count: int = 1


class Order(BaseModel):
    id: int
    lines: list[Line]
    payment: Card | Invoice = Field(discriminator="kind")
    ship_to: Address | None = Field(default=None, alias="shipTo")
    notes: dict[str, str | int] = {}


class Cancelled(BaseModel):
    id: int
    reason: str | None = None


class Event(BaseModel):
    """A union of models that no field tells apart."""

    about: Order | Cancelled


@asynccontextmanager
async def create(app: FastAPI) -> AsyncIterator[None]:
    client = broker(app)
    await client.queue("orders", Order).create()
    await client.stream("events", Event).create()
    yield


broker = Nexo()
app = FastAPI(lifespan=broker.around(create))
Client = Annotated[nexo.AsyncClient, Depends(broker.client)]


@app.put("/orders/{number}")
async def save(number: int, order: Order, client: Client) -> None:
    await client.store.set(f"order/{number}", order)


@app.get("/orders/{number}")
async def load(number: int, client: Client) -> Order:
    order = await client.store.get(f"order/{number}", Order)
    if order is None:
        raise HTTPException(404)
    return order


@app.post("/jobs")
async def push(order: Order, client: Client) -> str:
    return await client.queue("orders", Order).push(order)


@app.post("/jobs/next")
async def work(client: Client) -> Order | None:
    for job in await client.queue("orders", Order).pop(wait=1):
        await job.ack()
        return job.value
    return None


@app.post("/events")
async def record(event: Event, client: Client) -> dict[str, int]:
    return dict(await client.stream("events", Event).publish(event))


@app.get("/events")
async def replay(client: Client) -> list[Event]:
    return [record.value for record in await client.stream("events", Event).read()]


@app.post("/news/{topic}")
async def announce(topic: str, event: Event, client: Client) -> int:
    return await client.pubsub(f"news/{topic}", Event).publish(event, retain=True)


@app.get("/news/{topic}")
async def newest(topic: str, client: Client) -> Event:
    async with await client.pubsub(f"news/{topic}", Event).messages() as messages:
        return (await messages.get(timeout=5)).value
