"""What one process tells an operator: the status of its brokers, and its connections."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Any, Protocol

from nexo.access.grants import Extent
from nexo.access.permit import ADMIN, READ, permit
from nexo.model import Broker
from nexo.services.connection import Connection

SHOWN = 1_000
"""Connections in one list: the newest."""


class ShownConnection(Connection, Protocol):
    """A connection that describes itself."""

    def status(self) -> dict[str, Any]: ...


class HostOverview:
    """The use cases; for users who may read or administer all of a broker."""

    def __init__(
        self,
        status: Callable[[Broker], dict[str, Any]],
        connections: Collection[ShownConnection],
    ) -> None:
        self._status = status
        self._connections = connections

    def status(self, connection: Connection, broker: Broker) -> dict[str, Any]:
        """What the broker and its process say of themselves."""
        _permit(connection, broker)
        return self._status(broker)

    def connections(self, connection: Connection, broker: Broker) -> list[dict[str, Any]]:
        """The newest connections of the broker's process."""
        _permit(connection, broker)
        newest = heapq.nlargest(SHOWN, self._connections, key=lambda one: one.id)
        return [one.status() for one in newest]


def _permit(connection: Connection, broker: Broker) -> None:
    permit(connection.identity, broker, READ + ADMIN, "", Extent.PREFIX)
