"""How the store's requests are sent."""

from __future__ import annotations

from typing import Any

from nexo.client._async.link.link import Link
from nexo.protocol import store as wire
from nexo.protocol.messages import pack
from nexo.protocol.ops import Op

_READS = frozenset({
    Op.KEY_MGET, Op.KEY_EXISTS, Op.KEY_INSPECT, Op.KEY_SCAN, Op.FIELDS_GET, Op.FIELDS_ALL,
    Op.FIELDS_COUNT, Op.LIST_RANGE, Op.LIST_LENGTH, Op.SET_CONTAINS, Op.SET_MEMBERS, Op.SET_SIZE,
})  # fmt: skip
"""Requests that change nothing, and so may be sent again."""


async def ask(link: Link, op: Op, command: wire.StoreRequest) -> Any:
    """Send one of the store's requests; returns its decoded reply."""
    request = pack(command)
    if op in _READS:
        return wire.decode_reply(op, await link.repeat(op, request))
    return wire.decode_reply(op, await link.ask(op, request))
