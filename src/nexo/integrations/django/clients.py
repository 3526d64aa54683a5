"""One client per server and process, however many threads ask.

Django makes a cache and a task backend for each thread. A sync client serves any number of
threads and survives a fork, so all of them share one.
"""

from __future__ import annotations

import atexit
from contextlib import suppress
from threading import Lock
from typing import Any, Unpack

import nexo
from nexo.client.address import ConnectOptions
from nexo.errors import NexoError

_clients: dict[tuple[str | None, tuple[tuple[str, Any], ...]], nexo.Client] = {}
_guard = Lock()


def client_of(url: str | None, **options: Unpack[ConnectOptions]) -> nexo.Client:
    """The client of this server; it connects with its first request."""
    key = url or None, tuple(sorted(options.items()))
    with _guard:
        if key not in _clients:
            _clients[key] = nexo.Client(url or None, **options)
        return _clients[key]


@atexit.register
def close_all() -> None:
    """End the connections of this process; the next use makes new ones."""
    with _guard:
        clients = list(_clients.values())
        _clients.clear()
    for client in clients:
        with suppress(NexoError):
            client.close()
