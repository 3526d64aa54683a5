# Generated from ../_async/ledgers.py by tools/unasync.py; edit that file instead.
"""The ledger that a URL or a client names."""

from __future__ import annotations

from urllib.parse import urlsplit

from nexo.client._sync.client import Client
from nexo.topics._sync.connecting import url_of
from nexo.topics._sync.kafka_ledger import KafkaLedger
from nexo.topics._sync.ledger import Ledger, MemoryLedger
from nexo.topics._sync.nexo_ledger import NexoLedger


def ledger_for(server: Client | str | None, name: str, ttl_ms: int) -> Ledger:
    """``memory://``, ``nexo://`` or ``kafka://``; a client is used as it is."""
    if isinstance(server, Client):
        return NexoLedger(server, name, ttl_ms, owned=False)
    url = url_of(server)
    match urlsplit(url or "").scheme:
        case "memory":
            return MemoryLedger()
        case "kafka":
            return KafkaLedger(url or "", name)
    return NexoLedger(Client(url), name, ttl_ms, owned=True)
