# Generated from _async/connecting.py by tools/unasync.py; edit that file instead.
"""The cluster that a URL or a client names."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from nexo.client._sync.client import Client
from nexo.errors import InvalidInput
from nexo.topics._sync.kafka.backend import KafkaBackend
from nexo.topics._sync.nexo_backend import NexoTopicsBackend
from nexo.topics._sync.ports import TopicsBackend


def backend_for(server: Client | str | None) -> TopicsBackend:
    """``nexo://``, ``nexos://`` or ``kafka://host:port,host:port``; a client is used as it is.

    The default is ``NEXO_URL``, then a local server.
    """
    if isinstance(server, Client):
        return NexoTopicsBackend(server, owned=False)
    url = url_of(server)
    if url is not None and urlsplit(url).scheme == "kafka":
        return KafkaBackend(url)
    return NexoTopicsBackend(Client(url), owned=True)


def url_of(server: str | None) -> str | None:
    """The given URL, or that of the environment."""
    if server is not None and not isinstance(server, str):
        raise InvalidInput(f"server must be a client or a URL, not {server!r}")
    return server or os.environ.get("NEXO_URL")
