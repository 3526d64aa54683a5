"""The jobs of a queue that workers hold."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nexo.errors import Forbidden
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.queue import PeekJobs, decode, encode
from nexo.protocol.values import decode_value

if TYPE_CHECKING:
    from nexo import Client


def jobs_in_work(nexo: Client, name: str, limit: int, offset: int) -> list[dict[str, Any]]:
    """Each job with who holds it and how long its lease lasts."""
    request = encode(PeekJobs(name, limit, offset, "working"))
    reply = nexo.link(Broker.QUEUE).call(Op.Q_PEEK, request)
    rows = decode(reply or b"", list[dict[str, Any]])
    names = _names(nexo) if rows else {}
    now_ms = int(time.time() * 1000)
    return [
        {
            "id": row["id"],
            "value": decode_value(row["value"]),
            "holder": names.get(row["holder"], f"connection {row['holder']}"),
            "lease_left_ms": max(0, row["expires_ms"] - now_ms),
            "attempt": row["attempts"] + 1,
            "key": row["key"],
        }
        for row in rows
    ]


def _names(nexo: Client) -> dict[int, str]:
    """What connections call themselves, if the caller may know."""
    try:
        reply = nexo.link(Broker.QUEUE).call(Op.PEERS, bytes((Broker.QUEUE,)))
    except Forbidden:
        return {}
    return {row["id"]: row["name"] for row in decode_value(reply or b"\x02[]")}
