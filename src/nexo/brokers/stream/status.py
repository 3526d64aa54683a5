"""What the stream broker reports about itself."""

from __future__ import annotations

from typing import Any

from nexo.brokers.stream.engine import StreamEngine


def broker_status(engine: StreamEngine) -> dict[str, Any]:
    """Totals; `survey` covers each stream and group."""
    return {
        "streams": len(engine.streams),
        "groups": sum(len(stream.groups) for stream in engine.streams) + len(engine.ordered),
        "transactions": len(engine.transactions),
        "published": engine.published,
    }
