"""A FastAPI application for the tests, as uvicorn serves it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, FastAPI, WebSocket
from starlette.responses import Response

import nexo
from nexo.integrations.asgi import EventStream, Nexo, bridge
from nexo.types import Message

broker = Nexo()
app = FastAPI(lifespan=broker.lifespan)
Client = Annotated[nexo.AsyncClient, Depends(broker.client)]


@app.get("/hits")
async def hits(client: Client) -> float:
    return await client.store.incr("hits")


@app.websocket("/news/{number}")
async def news(websocket: WebSocket, number: int, client: Client) -> None:
    await bridge(websocket, client, f"news/{number}")


@app.websocket("/talk")
async def talk(websocket: WebSocket, client: Client) -> None:
    async def said(text: str | bytes) -> None:
        answer = text if isinstance(text, bytes) else f"you said {text}"
        await client.pubsub.publish("talk", answer)

    await bridge(websocket, client, "talk", data=content, on_receive=said)


def content(message: Message[Any]) -> str | bytes:
    value = message.value
    return value if isinstance(value, bytes) else f'"{value}"'


@app.get("/events/{number}")
async def events(number: int, client: Client) -> Response:
    return EventStream(client, f"news/{number}")
