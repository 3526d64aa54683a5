"""What the store reports about itself."""

from __future__ import annotations

from typing import Any

from nexo.brokers.store.engine import StoreEngine


def status(store: StoreEngine) -> dict[str, Any]:
    """Counters and sizes; costs nothing to read."""
    keyspace = store.keyspace
    return {
        "keys": len(keyspace),
        "keys_with_ttl": len(keyspace.expiry.due),
        "used_bytes": keyspace.used_bytes,
        "max_bytes": keyspace.max_bytes,
        "evicted": keyspace.evicted,
        "expired": keyspace.expired,
    }
