"""The web socket: one connection for any number of topics and streams, and for publishing.

Text frames with JSON both ways. A request is one of `SocketSubscribe`, `Unsubscribe`, `Follow`,
`SocketPublish`, distinguished by ``do``; the answer, `SocketFinished` or `SocketRefused`, carries
its ``id``. Followed topics and streams come as `MessageEvent` and
`RecordEvent`, distinguished by ``event``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from nexo import limits
from nexo.admin.api import events
from nexo.admin.api.events import MessageEvent, RecordEvent
from nexo.admin.api.pubsub import TopicName
from nexo.admin.context import ApiContext
from nexo.admin.http.routes import LiveEvent, Name, OffsetList, Seconds
from nexo.admin.values import NewValue, python_value
from nexo.client._async.client import AsyncClient
from nexo.errors import Conflict, InvalidInput, NexoError, NotFound, Overloaded

GOING_AWAY = 1001


class SocketSubscribe(msgspec.Struct, tag="subscribe", tag_field="do", forbid_unknown_fields=True):
    """Get the messages of a topic or pattern from now on."""

    topic: TopicName
    retained: bool = True
    id: int | None = None


class Unsubscribe(msgspec.Struct, tag="unsubscribe", tag_field="do", forbid_unknown_fields=True):
    """Get no more of a topic or stream."""

    topic: TopicName | None = None
    stream: Name | None = None
    id: int | None = None


class Follow(msgspec.Struct, tag="follow", tag_field="do", forbid_unknown_fields=True):
    """Get the records of a stream."""

    stream: Name
    offsets: OffsetList = ""
    """Where to begin, one offset per partition; at the end by default."""
    id: int | None = None


class SocketPublish(msgspec.Struct, tag="publish", tag_field="do", forbid_unknown_fields=True):
    """Publish a message to a topic, or a record to a stream."""

    value: NewValue
    topic: TopicName | None = None
    stream: Name | None = None
    key: str | None = None
    headers: dict[str, Any] | None = None
    retain: bool = False
    ttl_s: Seconds | None = None
    id: int | None = None


class SocketFinished(msgspec.Struct, tag="done", tag_field="event", omit_defaults=True):
    """A request was carried out."""

    id: int | None = None
    count: int | None = None
    """Of a message: how many received it."""
    partition: int | None = None
    offset: int | None = None
    """Of a record: where it went."""


class SocketRefused(msgspec.Struct, tag="problem", tag_field="event", omit_defaults=True):
    """A request was refused, or what was followed has ended."""

    code: str
    message: str
    id: int | None = None


SocketRequest: TypeAlias = SocketSubscribe | Unsubscribe | Follow | SocketPublish
Sent: TypeAlias = MessageEvent | RecordEvent | SocketFinished | SocketRefused

_decode = msgspec.json.Decoder(SocketRequest).decode
_encode = msgspec.json.encode


class Conversation:
    """One web socket, from its acceptance to its end."""

    def __init__(self, socket: WebSocket, context: ApiContext, client: AsyncClient) -> None:
        self._socket = socket
        self._context = context
        self._client = client
        self._followed: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Answer requests until the caller leaves or the server stops."""
        stopping = asyncio.ensure_future(self._context.stopping.wait())
        try:
            while True:
                coming = asyncio.ensure_future(self._socket.receive_text())
                await asyncio.wait((coming, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    await self._socket.close(GOING_AWAY)
                    return
                await self._answer(coming.result())
        except (WebSocketDisconnect, KeyError):
            return  # the caller left, or sent a binary frame (KeyError), which is not allowed
        finally:
            stopping.cancel()
            for task in self._followed.values():
                task.cancel()
            await asyncio.gather(*self._followed.values(), return_exceptions=True)

    async def _answer(self, text: str) -> None:
        try:
            request = _decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            await self._say(SocketRefused("INVALID", f"not a request: {error}"))
            return
        try:
            await self._say(await self._do(request))
        except NexoError as error:
            await self._say(SocketRefused(error.code, error.message, request.id))

    async def _do(self, request: SocketRequest) -> SocketFinished:
        match request:
            case SocketSubscribe(topic=topic):
                self._follow(
                    ("topic", topic), events.messages(self._client, topic, request.retained)
                )
            case Follow(stream=stream):
                self._follow(
                    ("stream", stream), events.records(self._client, stream, request.offsets)
                )
            case Unsubscribe():
                self._leave(request)
            case SocketPublish():
                return await self._publish(request)
        return SocketFinished(request.id)

    def _follow(self, what: tuple[str, str], found: AsyncIterator[Any]) -> None:
        known = self._followed.get(what)
        if known is not None and not known.done():
            raise Conflict(f"{what[0]} {what[1]!r} is followed already")
        if len(self._followed) >= limits.SOCKET_SUBSCRIPTIONS:
            raise Overloaded(f"a web socket follows at most {limits.SOCKET_SUBSCRIPTIONS} things")
        self._followed[what] = asyncio.ensure_future(self._pass_on(found, what))

    def _leave(self, request: Unsubscribe) -> None:
        kind, name = ("topic", request.topic) if request.topic else ("stream", request.stream)
        task = self._followed.pop((kind, name or ""), None)
        if task is None:
            raise NotFound(f"{kind} {name!r} is not followed")
        task.cancel()

    async def _pass_on(self, found: AsyncIterator[Any], what: tuple[str, str]) -> None:
        """Send events; for a caller that reads too slowly, the broker drops messages."""
        try:
            async for event in found:
                if event is not None:
                    await self._say(event.data if isinstance(event, LiveEvent) else event)
        except NexoError as error:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await self._say(SocketRefused(error.code, f"{what[0]} {what[1]}: {error.message}"))
            self._followed.pop(what, None)
        except (WebSocketDisconnect, RuntimeError):
            return  # the caller left

    async def _publish(self, request: SocketPublish) -> SocketFinished:
        value = python_value(request.value)
        if (request.topic is None) == (request.stream is None):
            raise InvalidInput("publish to a topic or to a stream")
        if request.topic is not None:
            receivers = await self._client.pubsub.publish(
                request.topic, value, headers=request.headers, retain=request.retain,
                ttl=request.ttl_s if request.retain else None,
            )  # fmt: skip
            return SocketFinished(request.id, receivers)
        stream = self._client.stream(request.stream or "")
        place = await stream.publish(value, key=request.key, headers=request.headers)
        return SocketFinished(request.id, partition=place.partition, offset=place.offset)

    async def _say(self, sent: Sent) -> None:
        await self._socket.send_text(_encode(sent).decode())
