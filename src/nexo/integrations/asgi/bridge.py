"""Pub/sub for browsers: a WebSocket or a stream of server-sent events per subscription.

Both watch the browser beside the topic, so that a subscription ends with its browser also when
nothing is published, and both end when the server is asked to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Unpack

import msgspec
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

import nexo
from nexo.client.checks import seconds
from nexo.options.units import Duration
from nexo.types import AsyncSubscription, Message, SubscribeOptions

_KEEP_ALIVE_S = 15.0
_GOING_AWAY = 1001

Data = Callable[[Message[Any]], str | bytes]
OnReceive = Callable[[str | bytes], Coroutine[Any, Any, None]]


async def bridge(
    websocket: WebSocket,
    client: nexo.AsyncClient,
    pattern: str,
    *,
    data: Data | None = None,
    on_receive: OnReceive | None = None,
    type_: Any = None,
    **options: Unpack[SubscribeOptions],
) -> None:
    """Send what is published to ``pattern`` to a WebSocket, until either side ends.

    ``data(message)`` is what is sent, JSON of the value by default; bytes are sent as a binary
    frame. ``on_receive`` is awaited with whatever the browser sends. ``type_`` and ``options`` are
    those of ``pubsub.subscribe``. The WebSocket is accepted if it was not yet, once the
    subscription is there: whoever sees it open misses nothing.
    """
    write = data or _json
    async with await client.pubsub.subscribe(pattern, type_=type_, **options) as subscription:
        if websocket.application_state is WebSocketState.CONNECTING:
            await websocket.accept()
        await _first_of(
            _send_all(websocket, subscription, write),
            _receive_all(websocket, on_receive),
            _stopping(websocket.app),
        )
    if _is_open(websocket):
        await websocket.close(_GOING_AWAY)


async def _send_all(
    websocket: WebSocket, subscription: AsyncSubscription[Any], write: Data
) -> None:
    async for message in subscription:
        content = write(message)
        if isinstance(content, bytes):
            await websocket.send_bytes(content)
        else:
            await websocket.send_text(content)


async def _receive_all(websocket: WebSocket, on_receive: OnReceive | None) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        if on_receive is not None:
            await on_receive(message["bytes"] if text is None else text)


def _is_open(websocket: WebSocket) -> bool:
    states = (websocket.application_state, websocket.client_state)
    return states == (WebSocketState.CONNECTED, WebSocketState.CONNECTED)


class EventStream(Response):
    """Server-sent events: what is published to ``pattern``, until the browser or the server ends.

    ``data(message)`` is an event's text, JSON of the value by default. A comment is sent every
    ``keep_alive``, for proxies that close what is silent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        client: nexo.AsyncClient,
        pattern: str,
        *,
        data: Callable[[Message[Any]], str] | None = None,
        keep_alive: Duration = _KEEP_ALIVE_S,
        headers: Mapping[str, str] | None = None,
        background: BackgroundTask | None = None,
        type_: Any = None,
        **options: Unpack[SubscribeOptions],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", **(headers or {})})
        del self.headers["content-length"]
        self.background = background
        self._client = client
        self._pattern = pattern
        self._write = data or _json
        self._keep_alive_s = seconds(keep_alive) or _KEEP_ALIVE_S
        self._type = type_
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with await self._client.pubsub.subscribe(
            self._pattern, type_=self._type, **self._options
        ) as subscription:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            await _first_of(
                self._send_all(subscription, send), _disconnected(receive), _stopping(scope["app"])
            )
        await send({"type": "http.response.body", "body": b""})
        if self.background is not None:
            await self.background()

    async def _send_all(self, subscription: AsyncSubscription[Any], send: Send) -> None:
        await _send_some(send, ": ready\n\n")
        while True:
            try:
                message = await subscription.get(self._keep_alive_s)
            except nexo.errors.RequestTimeout:
                await _send_some(send, ": nothing new\n\n")
            except nexo.errors.ConnectionLost:
                return  # the client was closed
            else:
                await _send_some(send, _event(self._write(message)))


async def _send_some(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


def _event(text: str) -> str:
    return "".join(f"data: {line}\n" for line in text.split("\n")) + "\n"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stopping(app: Any) -> None:
    """Wait until the server is asked to stop; for ever in an application without our lifespan."""
    stopping = getattr(app.state, "nexo_stopping", None) or asyncio.Event()
    await stopping.wait()


async def _first_of(*each: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends, and end the others; what it raised is raised."""
    tasks = [asyncio.ensure_future(one) for one in each]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        error = task.exception()
        if error is not None and not isinstance(error, WebSocketDisconnect | OSError):
            raise error


def _json(message: Message[Any]) -> str:
    return msgspec.json.encode(message.value).decode()
