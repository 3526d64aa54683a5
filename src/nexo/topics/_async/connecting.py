"""The cluster that a URL or a client names."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from nexo.client._async.client import AsyncClient
from nexo.topics._async.kafka_backend import KafkaBackend
from nexo.topics._async.nexo_backend import NexoBackend
from nexo.topics._async.ports import TopicsBackend


def backend_for(server: AsyncClient | str | None) -> TopicsBackend:
    """``nexo://``, ``nexos://`` or ``kafka://host:port,host:port``; a client is used as it is.

    Without any, ``NEXO_URL`` or a local server is meant.
    """
    if isinstance(server, AsyncClient):
        return NexoBackend(server, owned=False)
    url = server or os.environ.get("NEXO_URL")
    if url is not None and urlsplit(url).scheme == "kafka":
        return KafkaBackend(url)
    return NexoBackend(AsyncClient(url), owned=True)
