"""A Kafka client's connection and one request of it: what it names, and how it is answered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from struct import Struct
from typing import Any, Generic, TypeVar
from uuid import UUID

from nexo.access.scram import Exchange
from nexo.brokers.stream.groups.kafka.model import Caller
from nexo.dialects.dialect import Dialect, HostPort, Origin
from nexo.dialects.kafka.format.apis import Api, ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.encodings import Encodings
from nexo.dialects.kafka.format.errors import Error, Refused
from nexo.dialects.kafka.second_look import SecondLooks
from nexo.dialects.kafka.transactional_ids import KafkaTransactions
from nexo.dialects.pipelined import Pending, PipelinedSession
from nexo.dialects.session import DialectState
from nexo.errors import Forbidden, NexoError, NotFound
from nexo.model.names import name_of
from nexo.services.stream.admin import Outline

R = TypeVar("R")
T = TypeVar("T")
log = logging.getLogger("nexo.stream")

_SIZE, _CORRELATION = Struct(">i"), Struct(">i")

NODE_ID = 0
"""There is one broker."""
NO_TOPIC_ID = UUID(int=0)
LONG_BYTES = 16 * 1024
"""A request of more is read, run and answered in steps."""
_MANY = 256
"""An answer with a longer list is written in steps."""
ROW_WORK = 8 * 1024
"""What one row of a request is to be done for is about as much work, in bytes."""
_HALF = 64
_LOW = (1 << _HALF) - 1


class KafkaState(DialectState):
    """What all sessions share: services, batches converted for Kafka's clients, transactions."""

    def __init__(self, dialect: Dialect, host: HostPort) -> None:
        super().__init__(dialect, host)
        self.encodings = Encodings()
        self.transactions = KafkaTransactions()
        self.second_looks = SecondLooks()
        self.streams.core.who_rests = self.transactions.resting
        self._warned: set[str] = set()

    def warn_once(self, message: str) -> None:
        """Tell the operator what clients cannot mend; most do not show the server's errors."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning("%s", message)


class KafkaConnection(PipelinedSession):
    """One connection, but for how its requests are decoded."""

    def __init__(self, state: KafkaState, origin: Origin) -> None:
        super().__init__(state, origin)
        self.state = state
        self.streams = state.streams
        self.mechanism: str | None = None
        """How the client logs in, once that is agreed on."""
        self.exchange: Exchange | None = None
        """A login with SCRAM that has begun."""
        self.waits_for_its_id = False
        """It is a librdkafka whose idempotent producers would wait when they start."""
        self.looked = False
        """It has asked for topics on this connection."""

    @property
    def advertised_address(self) -> tuple[str, int]:
        """Where clients are to connect to: what is configured, or where this one did connect."""
        given = self._host.settings.kafka_advertised
        if given:
            host, _, port = given.rpartition(":")
            return host.strip("[]"), int(port)
        found = self._transport.get_extra_info("sockname")
        return (found[0], found[1]) if isinstance(found, tuple) else ("localhost", 0)


@dataclass(slots=True, eq=False)
class Request:
    """A decoded request. It has to be answered once."""

    session: KafkaConnection
    pending: Pending
    api: Api
    version: int
    correlation: int
    client_id: str
    body: KafkaMessage

    def __getitem__(self, field: str) -> Any:
        return self.body[field]

    @property
    def is_long(self) -> bool:
        """Whether it may name so many things that others would wait for it."""
        return len(self.pending.data) > LONG_BYTES

    def answer(self, message: KafkaMessage, form: int | None = None) -> None:
        """Answer with a message of the API's schema, of its own version or of another ``form``."""
        version = self.version if form is None else form
        if self.is_long or any(_is_long(field) for field in message.values()):
            self.session.work(self._answer_steps(message, version))
            return
        out = bytearray()
        self.api.response.write(out, message, version)
        self.answer_parts([out])

    def _answer_steps(self, message: KafkaMessage, version: int) -> Iterator[int]:
        out = bytearray()
        yield from self.api.response.write_steps(out, message, version)
        self.answer_parts([out])

    def answer_parts(self, body: list[Any]) -> None:
        """Answer with bytes, which are never joined."""
        head = _CORRELATION.pack(self.correlation)
        if self.api.is_flexible(self.version) and self.api.key is not ApiKey.API_VERSIONS:
            head += b"\x00"
        size = len(head) + sum(map(len, body))
        self.pending.send([_SIZE.pack(size) + head, *body])

    def answer_nothing(self) -> None:
        """The client waits for no answer."""
        self.pending.send(())


def _is_long(field: object) -> bool:
    return isinstance(field, list) and len(field) > _MANY


class Gather(Generic[T]):
    """Collects the results of several use cases, each of which answers now or later."""

    def __init__(self, finish: Callable[[list[T]], None]) -> None:
        self._finish = finish
        self._results: list[T | None] = []
        self._missing = 1

    def expect(self) -> Callable[[T], None]:
        """Expect one more result; call the returned function with it, once."""
        at = len(self._results)
        self._results.append(None)
        self._missing += 1

        def done(result: T) -> None:
            self._results[at] = result
            self.complete()

        return done

    def complete(self) -> None:
        """All are expected, or another one has come: finish after the last."""
        self._missing -= 1
        if not self._missing:
            self._finish(self._results)  # type: ignore[arg-type]  # none is missing


def answer_each(
    request: Request,
    asked: str,
    answered: str,
    one: Callable[[Request, Any, Callable[[KafkaMessage], None]], None],
) -> Iterator[int]:
    """Answer with a row for each that is asked for, which ``one`` gives now or later."""
    gather: Gather[KafkaMessage] = Gather(lambda rows: request.answer({answered: rows}))
    for row in request[asked] or ():
        one(request, row, gather.expect())
        yield ROW_WORK
    gather.complete()


def in_steps(
    rows: Iterable[R], one: Callable[[R], T], work: int = ROW_WORK
) -> Generator[int, None, list[T]]:
    """What ``one`` gives for each row; a step each."""
    found: list[T] = []
    for row in rows:
        found.append(one(row))
        yield work
    return found


@contextmanager
def errors_to(done: Callable[[NexoError], None]) -> Iterator[None]:
    """Call ``done`` with the error that a use case raises before it returns."""
    try:
        yield
    except NexoError as error:
        done(error)


def rows_of(request: Request, *, by_id: bool = False) -> list[tuple[Any, Any]]:
    """Topic, which may be its id, and row of every partition that a request names."""
    return [
        (topic["id"] if by_id else topic["name"] or "", part)
        for topic in request["topics"] or ()
        for part in topic["partitions"] or ()
    ]


def by_topic(rows: Iterable[tuple[str | UUID, Any]]) -> list[KafkaMessage]:
    """Rows of partitions as Kafka's responses have them: under their topics, in order."""
    found: dict[str | UUID, list[Any]] = {}
    for topic, row in rows:
        found.setdefault(topic, []).append(row)
    return [
        {"id" if isinstance(topic, UUID) else "name": topic, "partitions": parts}
        for topic, parts in found.items()
    ]


def stream_of(topic: str | None) -> str:
    """The stream that a topic is; `InvalidName` if there can be none."""
    return name_of(topic or "")


def outline_with(request: Request, topic: str | UUID, index: int) -> Outline:
    """The stream that a topic is, or one with this id; `NotFound` if it lacks this partition."""
    if isinstance(topic, UUID):
        return with_partition(found_by_id(request, topic), index)
    return with_partition(
        request.session.streams.admin.outline(request.session, stream_of(topic)), index
    )


def with_partition(found: Outline, index: int) -> Outline:
    """A stream that has this partition; else `NotFound`."""
    if not 0 <= index < found.options.partitions:
        raise NotFound(f"stream {found.name!r} has no partition {index}")
    return found


def topic_id(outline: Outline) -> UUID:
    """A stream's time of creation and its number, so that no id is ever given twice."""
    return UUID(int=outline.created_ms << _HALF | outline.number)


def outline_of(request: Request, found: UUID) -> Outline:
    """The stream with a topic id; `NotFound` if there is none."""
    admin = request.session.streams.admin
    return admin.outline_numbered(request.session, found.int & _LOW, found.int >> _HALF)


def found_by_id(request: Request, found: UUID) -> Outline:
    """The stream with a topic id; an id that was guessed tells nothing."""
    try:
        return outline_of(request, found)
    except (NotFound, Forbidden):
        raise Refused(Error.UNKNOWN_TOPIC_ID, f"there is no topic with the id {found}") from None


def caller_of(request: Request) -> Caller:
    """The member of a group that a request names as its sender."""
    return Caller(request["member"] or "", request["generation"], request["instance"])


def group_of(group: str | None) -> str:
    return name_of(group or "")
