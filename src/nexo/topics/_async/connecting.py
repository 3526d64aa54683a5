"""The cluster that a URL or a client names."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from nexo.client._async.client import AsyncClient
from nexo.errors import InvalidInput
from nexo.topics._async.kafka.backend import KafkaBackend
from nexo.topics._async.nexo_backend import NexoTopicsBackend
from nexo.topics._async.ports import TopicsBackend


def backend_for(server: AsyncClient | str | None) -> TopicsBackend:
    """``nexo://``, ``nexos://`` or ``kafka://host:port,host:port``; a client is used as it is.

    The default is ``NEXO_URL``, then a local server.
    """
    if isinstance(server, AsyncClient):
        return NexoTopicsBackend(server, owned=False)
    url = url_of(server)
    if url is not None and urlsplit(url).scheme == "kafka":
        return KafkaBackend(url)
    return NexoTopicsBackend(AsyncClient(url), owned=True)


def url_of(server: str | None) -> str | None:
    """The given URL, or that of the environment."""
    if server is not None and not isinstance(server, str):
        raise InvalidInput(f"server must be a client or a URL, not {server!r}")
    return server or os.environ.get("NEXO_URL")
