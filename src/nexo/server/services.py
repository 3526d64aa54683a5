"""The service of each broker, imported only where it runs."""

from __future__ import annotations

from collections.abc import Callable

from nexo.model import Broker
from nexo.server.runtime import HostRuntime
from nexo.server.service import Service


def factory(broker: Broker) -> Callable[[HostRuntime], Service]:
    """What builds the service of ``broker`` for a host."""
    # ruff: noqa: PLC0415 - a broker's process imports only its own broker
    match broker:
        case Broker.STORE:
            from nexo.server.dialects.nexo.store import StoreService

            return StoreService
        case Broker.PUBSUB:
            from nexo.server.dialects.nexo.pubsub import PubSubService

            return PubSubService
        case Broker.QUEUE:
            from nexo.server.dialects.nexo.queue import QueueService

            return QueueService
        case Broker.STREAM:
            from nexo.server.dialects.nexo.stream import StreamService

            return StreamService
