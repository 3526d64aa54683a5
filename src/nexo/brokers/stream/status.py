"""What the stream broker shows of itself."""

from __future__ import annotations

from typing import Any

from nexo.brokers.stream.engine import StreamEngine
from nexo.brokers.stream.registry import Stream

SHOWN = 100
"""Streams listed in the status; the rest is counted."""


def broker_status(engine: StreamEngine) -> dict[str, Any]:
    """Totals, and the first streams; opens no log, so it is cheap."""
    streams = list(engine.streams)
    return {
        "streams": len(streams),
        "groups": sum(len(stream.groups) for stream in streams),
        "transactions": len(engine.transactions),
        "published": engine.published,
        "items": [stream_status(stream) for stream in streams[:SHOWN]],
    }


def stream_status(stream: Stream) -> dict[str, Any]:
    """One stream, as far as it is open."""
    opened = [part for _, part in stream.opened()]
    return {
        "name": stream.name,
        "partitions": stream.options.partitions,
        "opened": len(opened),
        "records": sum(part.next_offset - part.start_offset for part in opened),
        "bytes": sum(part.log.size_bytes for part in opened),
        "groups": len(stream.groups),
    }
