"""One object for all four brokers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from msgspec import convert

from nexo.client import telemetry
from nexo.client._async import runtime
from nexo.client._async.contract import Contract
from nexo.client._async.handling import AsyncClosing
from nexo.client._async.link.link import Link
from nexo.client._async.pubsub.pubsub import PubSub
from nexo.client._async.queue.gather import Pusher
from nexo.client._async.queue.queue import Queue
from nexo.client._async.requests import status
from nexo.client._async.store.store import Store
from nexo.client._async.stream.groups import stream_names
from nexo.client._async.stream.publisher import RecordPublisher
from nexo.client._async.stream.stream import Stream
from nexo.client._async.stream.transaction import Transaction
from nexo.client._async.traced import (
    TracedPubSub,
    TracedQueue,
    TracedStream,
    TracedTransaction,
)
from nexo.client.address import Address, ConnectOptions, parse_url
from nexo.client.connecting import Reached
from nexo.errors import ConfigError, Forbidden
from nexo.extras import hint
from nexo.model import Broker
from nexo.model.queue import QueueInfo
from nexo.model.server import ServerInfo
from nexo.options.units import Duration
from nexo.protocol.messages import unpack
from nexo.protocol.ops import Op

if TYPE_CHECKING:
    from nexo.sql.result import Result

T = TypeVar("T")


class AsyncClient(AsyncClosing):
    """Store, Pub/Sub, Queue and Stream of one server.

    ``async with AsyncClient(url) as client`` closes it at the end. Each broker has its own
    connection, opened on first use. ``url`` defaults to ``NEXO_URL``, then to a server on this
    machine; ``options`` win over the URL's. Credentials default to ``NEXO_TOKEN``, or
    ``NEXO_USER`` and ``NEXO_PASSWORD``.
    """

    def __init__(self, url: str | Address | None = None, **options: Unpack[ConnectOptions]) -> None:
        self.address: Address = parse_url(url, **options)
        reached = Reached()
        self._links = {broker: Link(self.address, broker, reached) for broker in Broker}
        self._publishers: dict[str, RecordPublisher] = {}
        self._pusher = Pusher(self._links[Broker.QUEUE])
        self.store = Store(self._links[Broker.STORE])
        """Shared state: keys, counters, maps, lists, sets."""
        pubsub = TracedPubSub if telemetry.in_use() else PubSub
        self.pubsub: PubSub = pubsub(self._links[Broker.PUBSUB])
        """Topics: publish and subscribe."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.address}>"

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if any(link.open for link in getattr(self, "_links", {}).values()):
            what = f"{self!r} was not closed: `await client.close()`, or use it in `async with`"
            warn(what, ResourceWarning, source=self)

    async def close(self) -> None:
        """End every connection; requests in flight fail with `ConnectionLost`.

        Sends that need not be awaited, such as `publish`, reach the server first; a failed one is
        raised here.
        """
        await self.pubsub.close()
        for link in self._links.values():
            await link.close()
        for link in self._links.values():
            link.raise_unheard()

    @overload
    def queue(self, name: str) -> Queue[Any]: ...
    @overload
    def queue(self, name: str, type_: type[T]) -> Queue[T]: ...
    def queue(self, name: str, type_: type[T] | None = None) -> Queue[Any]:
        """The queue of that name, whose jobs are of ``type_``; nothing is sent yet."""
        make = TracedQueue if telemetry.in_use() else Queue
        return make(self._links[Broker.QUEUE], name, type_, self._pusher)

    async def queues(self, prefix: str = "") -> list[str]:
        """The names of all queues that begin with ``prefix``, in order."""
        return [info.name for info in await self.queue_infos(prefix)]

    async def queue_infos(self, prefix: str = "") -> list[QueueInfo]:
        """The options and counts of all queues that begin with ``prefix``, with one request.

        Streams have no such call: their infos need their logs to be opened.
        """
        reply = await self._links[Broker.QUEUE].repeat(Op.Q_LIST)
        found = unpack(list[QueueInfo], reply or b"")
        return [info for info in found if info.name.startswith(prefix)]

    @overload
    def stream(self, name: str) -> Stream[Any]: ...
    @overload
    def stream(self, name: str, type_: type[T]) -> Stream[T]: ...
    def stream(self, name: str, type_: type[T] | None = None) -> Stream[Any]:
        """The stream of that name, whose records are of ``type_``; nothing is sent yet."""
        make = TracedStream if telemetry.in_use() else Stream
        return make(self._links[Broker.STREAM], name, type_, self._publishers)

    async def streams(self, prefix: str = "") -> list[str]:
        """The names of all streams that begin with ``prefix``, in order."""
        return await stream_names(self._links[Broker.STREAM].repeat, prefix)

    async def sql(
        self,
        query: str,
        *,
        streams: Sequence[str] | None = None,
        as_of: datetime | None = None,
        lake: str | None = None,
    ) -> Result:
        """Run a query over streams, their hot log and their history; see `nexo.sql`.

        ``lake`` is the lake's folder, if it is not where the server says; ``as_of`` leaves out
        what was published later, ``streams`` limits ``stream_messages``.
        """
        try:
            from nexo.sql.engine import answer  # noqa: PLC0415 - slow to import, and optional
        except ImportError as error:
            raise ConfigError(hint(str(error.name), "sql")) from None
        try:
            found = await status(self._links[Broker.STREAM].call, Broker.STREAM)
        except Forbidden:  # who may read only some streams is not told where the lake is
            found = {}
        ask = partial(answer, self.address, found, query, streams=streams, as_of=as_of, lake=lake)
        return await runtime.in_thread(ask)

    def contract(self, stream: str, *, lake: str | None = None) -> Contract:
        """How a stream's values become columns in the lake; nothing is asked yet.

        ``lake`` is the lake's folder, if it is not where the server says.
        """
        return Contract(self._links[Broker.STREAM], stream, lake)

    def transaction(self, *, timeout: Duration = 60.0) -> Transaction:
        """Records and commits that become visible together or not at all.

        A transaction open for ``timeout`` is rolled back.
        """
        make = TracedTransaction if telemetry.in_use() else Transaction
        return make(self._links[Broker.STREAM], timeout)

    async def ping(self, broker: Broker = Broker.STORE) -> float:
        """Seconds that a round trip to ``broker`` takes."""
        start_s = runtime.now_s()
        await self._links[broker].repeat(Op.ECHO, b"ping")
        return runtime.now_s() - start_s

    async def info(self) -> ServerInfo:
        """The report of each broker: its contents, connections, disk and process."""
        found = {
            broker.label: await status(link.repeat, broker) for broker, link in self._links.items()
        }
        return convert(found, ServerInfo)

    def link(self, broker: Broker) -> Link:
        """The connection to ``broker``, for layers built on this client."""
        return self._links[broker]
