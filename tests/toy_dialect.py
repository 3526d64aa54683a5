"""A toy protocol of text lines as a second dialect: get, set, publish, push, pop.

``docs/design/adding-a-dialect.md`` walks through it. It uses services only, so permissions,
durability and limits hold here as they do for our own protocol.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nexo.blocks import pack_block
from nexo.brokers.pubsub.message import Publication, PubSubMessage
from nexo.brokers.queue.jobs import NewJobs
from nexo.dialects.dialect import Claim, Dialect, HostPort, Origin
from nexo.dialects.session import BaseSession, DialectState, SessionSpeaker
from nexo.errors import InvalidInput, NexoError, ShuttingDown, Unauthenticated
from nexo.model import Broker
from nexo.protocol.hello import Hello
from nexo.services.pubsub.service import Receivers
from nexo.services.queue.views import LeasedJobs
from nexo.services.queue.work import JobSettlement, Outcome

STORE, PUBSUB, QUEUE = Broker.STORE, Broker.PUBSUB, Broker.QUEUE
VERBS = dict.fromkeys(("login", "get", "set"), STORE) | {"push": QUEUE, "pop": QUEUE}
VERBS["publish"] = PUBSUB


class ToyDialect(Dialect):
    name, home = "toy", STORE

    def claim(self, first: bytes) -> Broker | Claim:
        verb, space, _ = first.decode("latin-1").partition(" ")
        if not space and any(known.startswith(verb) for known in VERBS):
            return Claim.MORE
        return VERBS.get(verb, Claim.NO) if space else Claim.NO

    def refusal(self, first: bytes, error: NexoError) -> bytes:
        return f"error {error.code} {error.message}\n".encode()

    def start(self, host: HostPort) -> SessionSpeaker[DialectState, ToySession]:
        return SessionSpeaker(DialectState(host), ToySession)


class ToySession(BaseSession, asyncio.Protocol):
    def __init__(self, state: DialectState, origin: Origin) -> None:
        super().__init__(state.host, origin)
        self._state, self._lines, self._rest = state, 0, b""
        self._services: Any = state.host.services  # each call is checked by the tests

    @property
    def introduced(self) -> bool:
        return self.identity is not None if self._host.guard else self._lines > 0

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines if not self._closing else ():
            self._lines += 1
            try:
                self._run(*line.decode().split(" "))
            except NexoError as error:
                self._answer(error)
            except (TypeError, UnicodeDecodeError):
                self._answer(InvalidInput("not that many words"))

    def _run(self, verb: str, *words: str) -> None:
        if self._state.stopping:
            raise ShuttingDown("the server is stopping; reconnect in a moment")
        if self._host.guard and self.identity is None and verb != "login":
            raise Unauthenticated("log in first: login USER PASSWORD")
        if verb not in VERBS:
            raise InvalidInput(f"unknown command {verb!r}")
        getattr(self, f"_{verb}")(*words)

    def _login(self, user: str, password: str) -> None:
        if self._host.guard is not None:
            self._host.guard.login(self, Hello(user=user, password=password), self._answer)

    def _get(self, key: str) -> None:
        self._answer(self._services[STORE].get(self, key))

    def _set(self, key: str, value: str) -> None:
        self._answer(self._services[STORE].put(self, key, text(value)))

    def _publish(self, topic: str, value: str) -> None:
        message = PubSubMessage(topic, text(value), self._host.clock.now_ms())
        self._services[PUBSUB].publish(self, Publication.of([message]), self._answer)

    def _push(self, name: str, value: str) -> None:
        self._services[QUEUE].push(self, name, NewJobs(1, pack_block([text(value)])), self._answer)

    def _pop(self, name: str) -> None:
        def popped(found: LeasedJobs | NexoError | None) -> None:
            if not isinstance(found, LeasedJobs):
                return answer(found)
            whole, [value] = [JobSettlement(found.lease.token)], found.values()
            self._services[QUEUE].settle(self, name, Outcome.ACK, whole, lambda _: answer(value))
            return None

        answer = self._answer
        self._services[QUEUE].pop(self, self._lines, name, 1, 1_000, popped)

    def _answer(self, result: object) -> None:
        match result:
            case NexoError():
                line = f"error {result.code} {result.message}".encode()
            case bytes():
                line = b"value " + result[1:]  # the first byte says that it is text
            case Receivers():
                line = b"value %d" % result.total
            case _:
                line = b"ok"
        if not self.closed:
            self._transport.write(line + b"\n")

    def refuse(self, error: NexoError) -> None:
        self._answer(error)
        self.finish()


def text(value: str) -> bytes:
    return b"\x01" + value.encode()
