"""Who is connected."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any, Literal

import msgspec

from nexo.admin.api.paging import SearchAsk, page
from nexo.admin.context import ApiContext
from nexo.admin.http.routes import ApiRoutes
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


@routes.get("/connections")
async def connections(context: ApiContext, ask: ConnectionsAsk) -> ConnectionPage:
    """The connections of every broker, or one."""
    chosen = [broker for broker in Broker if ask.broker in (None, broker.label)]
    lists = await asyncio.gather(*(peers(context, broker) for broker in chosen))
    rows = sorted(chain(*lists), key=lambda row: -row.opened_ms)
    return ConnectionPage(
        *page(rows, ask, lambda row: f"{row.name} {row.address} {row.user or ''}")
    )


async def peers(context: ApiContext, broker: Broker) -> list[ConnectionRow]:
    """The connections of one broker, the newest first."""
    try:
        reply = await context.client.link(broker).call(Op.PEERS, bytes((broker,)))
    except (ConnectionLost, Unavailable):
        return []  # it restarts; the overview says so
    rows: list[dict[str, Any]] = decode_value(reply or b"\x02[]")
    return [msgspec.convert(row | {"broker": broker.label}, ConnectionRow) for row in rows]
