"""The opcode table: which handler of which broker runs a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from nexo.dialects.nexo.handlers import Answer, Handler
from nexo.dialects.nexo.shared import Table
from nexo.model import Broker
from nexo.services.service import Service


class Requests(Protocol):
    """One broker's requests; a class may also have ``answers``, by opcode too."""

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """By opcode, also of the requests in ``answers``."""


def requests_of(service: Service) -> Requests:
    # ruff: noqa: PLC0415 - a broker's process imports only its own broker
    known: Any = service
    match service.broker:
        case Broker.STORE:
            from nexo.dialects.nexo.store import StoreRequests

            return StoreRequests(known)
        case Broker.PUBSUB:
            from nexo.dialects.nexo.pubsub import PubSubRequests

            return PubSubRequests(known)
        case Broker.QUEUE:
            from nexo.dialects.nexo.queue import QueueRequests

            return QueueRequests(known)
        case Broker.STREAM:
            from nexo.dialects.nexo.stream.requests import StreamRequests

            return StreamRequests(known)


def build_table(services: Mapping[Broker, Service]) -> Table:
    handlers: list[Handler | None] = [None] * 256
    answers: list[Answer | None] = [None] * 256
    for service in services.values():
        requests = requests_of(service)
        quick: Mapping[int, Answer] = getattr(requests, "answers", {})
        for op, handler in requests.handlers.items():
            handlers[op], answers[op] = handler, quick.get(op)
    return Table(handlers, answers)
