"""Results of actors, in the store."""

from __future__ import annotations

from typing import Any

from dramatiq.encoder import Encoder
from dramatiq.results import Missing, ResultBackend

from nexo.client._sync.client import Client


class DramatiqResultBackend(ResultBackend):
    """Keeps each result as long as its actor says (``result_ttl``)."""

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "dramatiq-results",
        encoder: Encoder | None = None,
        client: Client | None = None,
        **client_options: Any,
    ) -> None:
        super().__init__(namespace=namespace, encoder=encoder)
        self.client = client or Client(url, **client_options)

    def close(self) -> None:
        self.client.close()

    def _get(self, message_key: str) -> Any:
        content = self.client.store.get(message_key)
        return Missing if content is None else self.encoder.decode(content)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        self.client.store.set(message_key, self.encoder.encode(result), ttl=ttl / 1_000)
