"""Nexo: Store, Pub/Sub, Queue and Stream in one Python service.

``nexo.connect(url)`` gives the sync client, ``await nexo.connect_async(url)`` the async one;
both classes can also be made directly: ``with nexo.Client(url)``, ``async with
nexo.AsyncClient(url)``. Names are loaded when first used, so that ``import nexo`` is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Unpack

from nexo.version import __version__

if TYPE_CHECKING:
    from nexo import errors as errors
    from nexo import testing as testing
    from nexo import topics as topics
    from nexo import types as types
    from nexo import xstreams as xstreams
    from nexo.client._async.client import AsyncClient as AsyncClient
    from nexo.client._sync.client import Client as Client
    from nexo.client.address import ConnectOptions
    from nexo.client.by_value import by_value as by_value
    from nexo.errors import NexoError as NexoError
    from nexo.model import Broker as Broker
    from nexo.model import Persistence as Persistence

__all__ = [
    "AsyncClient",
    "Broker",
    "Client",
    "NexoError",
    "Persistence",
    "__version__",
    "by_value",
    "connect",
    "connect_async",
]

_HOMES = {
    "AsyncClient": "nexo.client._async.client",
    "Broker": "nexo.model",
    "Client": "nexo.client._sync.client",
    "NexoError": "nexo.errors",
    "Persistence": "nexo.model",
    "by_value": "nexo.client.by_value",
}
_MODULES = {"errors", "testing", "topics", "types", "xstreams"}

if not TYPE_CHECKING:  # or else every misspelt name would pass the check of types

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        if name in _MODULES:
            return importlib.import_module(f"nexo.{name}")
        raise AttributeError(f"module 'nexo' has no attribute {name!r}")


def connect(url: str | None = None, **options: Unpack[ConnectOptions]) -> Client:
    """A sync client whose server has answered; close it, or use it in ``with``.

    ``url`` defaults to ``NEXO_URL``, then to a server on this machine; credentials default to
    ``NEXO_TOKEN``, or ``NEXO_USER`` and ``NEXO_PASSWORD``. Raises `ConnectionLost` if the server
    cannot be reached.
    """
    from nexo.client._sync.client import Client  # noqa: PLC0415 - keeps ``import nexo`` cheap

    client = Client(url, **options)
    try:
        client.ping()
    except BaseException:
        client.close()
        raise
    return client


async def connect_async(url: str | None = None, **options: Unpack[ConnectOptions]) -> AsyncClient:
    """`connect` for asyncio: an async client whose server has answered."""
    from nexo.client._async.client import AsyncClient  # noqa: PLC0415 - as above

    client = AsyncClient(url, **options)
    try:
        await client.ping()
    except BaseException:
        await client.close()
        raise
    return client
