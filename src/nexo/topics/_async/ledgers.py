"""The ledger that a URL or a client names."""

from __future__ import annotations

from urllib.parse import urlsplit

from nexo.client._async.client import AsyncClient
from nexo.topics._async.connecting import url_of
from nexo.topics._async.kafka_ledger import KafkaLedger
from nexo.topics._async.ledger import Ledger, MemoryLedger
from nexo.topics._async.nexo_ledger import NexoLedger


def ledger_for(server: AsyncClient | str | None, name: str, ttl_ms: int) -> Ledger:
    """``memory://``, ``nexo://`` or ``kafka://``; a client is used as it is."""
    if isinstance(server, AsyncClient):
        return NexoLedger(server, name, ttl_ms, owned=False)
    url = url_of(server)
    match urlsplit(url or "").scheme:
        case "memory":
            return MemoryLedger()
        case "kafka":
            return KafkaLedger(url or "", name)
    return NexoLedger(AsyncClient(url), name, ttl_ms, owned=True)
