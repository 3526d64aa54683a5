"""A toy protocol of text lines as a second dialect: get, set, publish, push, pop.

``docs/design/adding-a-dialect.md`` walks through it. It uses services only, so permissions,
durability and limits hold here as they do for our own protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from nexo.blocks import pack_block, values_of
from nexo.brokers.pubsub.message import Publication, PubSubMessage
from nexo.brokers.queue.jobs import NewJobs
from nexo.dialects.dialect import Claim, HostPort, Origin
from nexo.dialects.session import BaseSession
from nexo.errors import InvalidInput, NexoError, ShuttingDown, Unauthenticated
from nexo.model import Broker
from nexo.protocol.hello import Hello
from nexo.services.pubsub import PubSubService
from nexo.services.pubsub.service import Receivers
from nexo.services.queue import QueueService
from nexo.services.queue.views import LeasedJobs
from nexo.services.queue.work import JobSettlement, Outcome
from nexo.services.store import StoreService

VERBS = {
    b"login": Broker.STORE,
    b"get": Broker.STORE,
    b"set": Broker.STORE,
    b"publish": Broker.PUBSUB,
    b"push": Broker.QUEUE,
    b"pop": Broker.QUEUE,
}


class ToyDialect:
    """Implements `nexo.dialects.dialect.Dialect`."""

    name = "toy"
    home = Broker.STORE

    def claim(self, first: bytes) -> Broker | Claim:
        verb, space, _ = first.partition(b" ")
        if not space and any(known.startswith(verb) for known in VERBS):
            return Claim.MORE
        return VERBS.get(verb, Claim.NO) if space else Claim.NO

    def claim_alpn(self, names: Sequence[str]) -> Broker | None:
        return None

    def refusal(self, first: bytes, error: NexoError) -> bytes:
        return f"error {error.code} {error.message}\n".encode()

    def start(self, host: HostPort) -> ToySpeaker:
        return ToySpeaker(host)


class ToySpeaker:
    """Implements `nexo.dialects.dialect.Speaker`."""

    stopping = False

    def __init__(self, host: HostPort) -> None:
        self.host = host

    def session(self, origin: Origin) -> ToySession:
        return ToySession(self, origin)

    def stop(self) -> None:
        self.stopping = True


class ToySession(BaseSession, asyncio.Protocol):
    """One connection."""

    def __init__(self, speaker: ToySpeaker, origin: Origin) -> None:
        super().__init__(speaker.host, origin)
        self._speaker = speaker
        self._lines = 0
        self._rest = b""

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
        if self._speaker.stopping:
            raise ShuttingDown("the server is stopping; reconnect in a moment")
        if self._host.guard and self.identity is None and verb != "login":
            raise Unauthenticated("log in first: login USER PASSWORD")
        if verb.encode() not in VERBS:
            raise InvalidInput(f"unknown command {verb!r}")
        getattr(self, f"_{verb}")(*words)

    def _login(self, user: str, password: str) -> None:
        if self._host.guard is not None:
            self._host.guard.login(self, Hello(user=user, password=password), self._answer)

    def _get(self, key: str) -> None:
        value = self._store.get(self, key)
        self._answer(value and value[1:])  # the first byte says that it is text

    def _set(self, key: str, value: str) -> None:
        self._store.put(self, key, b"\x01" + value.encode())
        self._answer(None)

    @property
    def _store(self) -> StoreService:
        return cast("StoreService", self._host.services[Broker.STORE])

    @property
    def _queues(self) -> QueueService:
        return cast("QueueService", self._host.services[Broker.QUEUE])

    def _publish(self, topic: str, value: str) -> None:
        message = PubSubMessage(topic, b"\x01" + value.encode(), self._host.clock.now_ms())
        pubsub = cast("PubSubService", self._host.services[Broker.PUBSUB])

        def published(result: Receivers | NexoError) -> None:
            if isinstance(result, Receivers):
                self._answer(str(sum(count for count, _ in result.counts)).encode())
            else:
                self._answer(result)

        pubsub.publish(self, Publication.of([message]), published)

    def _push(self, name: str, value: str) -> None:
        jobs = NewJobs(1, pack_block([b"\x01" + value.encode()]))
        self._queues.push(self, name, jobs, self._answer)

    def _pop(self, name: str) -> None:
        """Take a job and acknowledge it at once, waiting a second for one."""

        def popped(found: LeasedJobs | NexoError | None) -> None:
            if not isinstance(found, LeasedJobs):
                self._answer(found)
                return
            (job,) = found.slices
            value = values_of(job.ends, job.content)[0][1:]
            whole = [JobSettlement(found.lease.token)]
            self._queues.settle(self, name, Outcome.ACK, whole, lambda _: self._answer(value))

        self._queues.pop(self, self._lines, name, 1, 1_000, popped)

    def _answer(self, result: object) -> None:
        match result:
            case NexoError():
                line = f"error {result.code} {result.message}".encode()
            case bytes():
                line = b"value " + result
            case _:
                line = b"ok"
        if not self.closed:
            self._transport.write(line + b"\n")

    def check(self, now_ms: int) -> None: ...

    def flush(self) -> None: ...

    def refuse(self, error: NexoError) -> None:
        self._answer(error)
        self.finish()
