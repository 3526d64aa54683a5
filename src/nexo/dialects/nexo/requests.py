"""The opcode table: which handler of which broker runs a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from nexo.dialects.nexo.handlers import DirectHandler, Handler, Peer
from nexo.errors import ShuttingDown, Unauthenticated
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.services.service import Service


class Table:
    """The handler of each opcode; without one, the session looks elsewhere."""

    __slots__ = ("answers", "handlers")

    def __init__(
        self, handlers: Iterable[Handler | None], answers: Iterable[DirectHandler | None]
    ) -> None:
        self.handlers = list(handlers)
        self.answers = list(answers)
        """Tried before the handler of the same opcode."""

    def refuse_all(self) -> None:
        self.handlers[:] = [_stopping] * 256
        self.handlers[Op.HELLO] = _stopping_at_hello
        self.answers[:] = [None] * 256


def login_table() -> Table:
    """For connections that must log in: accepts only HELLO."""
    return Table((None if op == Op.HELLO else _login_first for op in range(256)), [None] * 256)


def _login_first(peer: Peer, request_id: int, payload: memoryview) -> None:
    raise Unauthenticated("log in with HELLO first, and wait for its reply")


def _stopping(peer: Peer, request_id: int, payload: memoryview) -> None:
    raise ShuttingDown("the server is stopping; reconnect in a moment")


def _stopping_at_hello(peer: Peer, request_id: int, payload: memoryview) -> None:
    peer.said_hello = True  # it reads coded errors: this one is not final
    _stopping(peer, request_id, payload)


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
    answers: list[DirectHandler | None] = [None] * 256
    for service in services.values():
        requests = requests_of(service)
        quick: Mapping[int, DirectHandler] = getattr(requests, "answers", {})
        for op, handler in requests.handlers.items():
            handlers[op], answers[op] = handler, quick.get(op)
    return Table(handlers, answers)
