"""Connections and applications."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import chain
from typing import Any, Literal

import msgspec

from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes, SearchAsk, page
from nexo.errors import ConnectionLost, Unavailable
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value

routes = ApiRoutes("Connections")


class ConnectionsAsk(SearchAsk):
    """Which connections."""

    broker: Literal["store", "pubsub", "queue", "stream"] | None = None


class ConnectionRow(msgspec.Struct):
    """One client's connection to one broker."""

    broker: str
    id: int
    name: str
    address: str
    user: str | None
    dialect: str
    """The protocol: ``nexo`` or ``kafka``."""
    opened_ms: int
    heard_ms: int
    in_flight: int
    """Requests not answered yet."""
    requests: int
    """All it has sent, as are its bytes."""
    bytes_in: int
    bytes_out: int
    unsent_bytes: int
    slow: bool
    """It reads slower than it is written to."""
    internal: bool
    """A link between the server's own processes."""
    hello: bool
    """It introduced itself; existing clients do not."""


class ConnectionPage(msgspec.Struct):
    """Connections, the newest first; of each broker at most a thousand."""

    connections: list[ConnectionRow]
    total: int


class ClientRow(msgspec.Struct):
    """All connections of one application: of one name and user, from one host."""

    name: str
    host: str
    user: str | None
    brokers: list[str]
    connections: int
    opened_ms: int
    """Of the oldest connection."""
    heard_ms: int
    requests: int
    bytes_in: int
    bytes_out: int
    in_flight: int
    unsent_bytes: int
    slow: bool
    internal: bool


class ClientPage(msgspec.Struct):
    """Applications, the one heard last first."""

    clients: list[ClientRow]
    total: int


@routes.get("/clients")
async def clients(context: ApiContext, ask: ConnectionsAsk) -> ClientPage:
    """The connections of every broker, or one, gathered by application."""
    found = defaultdict[tuple[str, str, str], list[ConnectionRow]](list)
    for row in await _everyone(context, ask):
        found[row.name, _host(row), row.user or ""].append(row)
    rows = sorted(map(_client, found.values()), key=lambda row: -row.heard_ms)
    return ClientPage(*page(rows, ask, lambda row: f"{row.name} {row.host} {row.user or ''}"))


def _host(row: ConnectionRow) -> str:
    return row.address.rpartition(":")[0] or row.address


def _client(rows: list[ConnectionRow]) -> ClientRow:
    return ClientRow(
        name=rows[0].name,
        host=_host(rows[0]),
        user=rows[0].user,
        brokers=sorted({row.broker for row in rows}),
        connections=len(rows),
        opened_ms=min(row.opened_ms for row in rows),
        heard_ms=max(row.heard_ms for row in rows),
        requests=sum(row.requests for row in rows),
        bytes_in=sum(row.bytes_in for row in rows),
        bytes_out=sum(row.bytes_out for row in rows),
        in_flight=sum(row.in_flight for row in rows),
        unsent_bytes=sum(row.unsent_bytes for row in rows),
        slow=any(row.slow for row in rows),
        internal=all(row.internal for row in rows),
    )


@routes.get("/connections")
async def connections(context: ApiContext, ask: ConnectionsAsk) -> ConnectionPage:
    """The connections of every broker, or one."""
    rows = sorted(await _everyone(context, ask), key=lambda row: -row.opened_ms)
    return ConnectionPage(
        *page(rows, ask, lambda row: f"{row.name} {row.address} {row.user or ''}")
    )


async def _everyone(context: ApiContext, ask: ConnectionsAsk) -> list[ConnectionRow]:
    chosen = [broker for broker in Broker if ask.broker in (None, broker.label)]
    return list(chain(*await asyncio.gather(*(peers(context, broker) for broker in chosen))))


async def peers(context: ApiContext, broker: Broker) -> list[ConnectionRow]:
    """The connections of one broker, the newest first."""
    try:
        reply = await context.client.link(broker).call(Op.PEERS, bytes((broker,)))
    except (ConnectionLost, Unavailable):
        return []  # it restarts; the overview says so
    rows: list[dict[str, Any]] = decode_value(reply or b"\x02[]")
    return [msgspec.convert(row | {"broker": broker.label}, ConnectionRow) for row in rows]
