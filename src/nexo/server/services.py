"""The service of each broker, imported only where it runs."""

from __future__ import annotations

from collections.abc import Callable

from nexo.model import Broker
from nexo.server.runtime import HostRuntime
from nexo.services.service import Service


def factory(broker: Broker) -> Callable[[HostRuntime], Service]:
    # ruff: noqa: PLC0415 - a broker's process imports only its own broker
    match broker:
        case Broker.STORE:
            from nexo.services.store.service import StoreService

            return StoreService
        case Broker.PUBSUB:
            from nexo.services.pubsub.service import PubSubService

            return PubSubService
        case Broker.QUEUE:
            from nexo.services.queue.service import QueueService

            return QueueService
        case Broker.STREAM:
            from nexo.services.stream.service import StreamService

            return StreamService
