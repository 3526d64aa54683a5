"""A Kafka client's session without a network, on a disk and a clock of the test's own."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from itertools import count
from typing import Any, cast

from nexo.access.login import Identity
from nexo.access.users import User
from nexo.dialects.dialect import HostPort, Origin
from nexo.dialects.kafka.dialect import KafkaDialect
from nexo.dialects.kafka.format.apis import APIS, ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.wire import Input
from nexo.dialects.kafka.session import KafkaSession
from nexo.model import Broker
from tests.unit.brokers.stream.desk import Desk

_ids = count(1_000_000)


class _Loop:
    """Calls back at the end of the desk's turn."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def call_soon(self, callback: Callable[..., None], *args: object) -> None:
        self._desk.runtime.soon(lambda: callback(*args))


class _Turn:
    """What a read asks for is done at the end of the desk's turn."""

    reading = asked = False


class _Host:
    """As much of a host as a session asks for."""

    def __init__(self, desk: Desk) -> None:
        self.loop = _Loop(desk)
        self.turn = _Turn()
        self.settings = desk.runtime.settings
        self.clock = desk.runtime.clock
        self.services = {Broker.STREAM: desk.service}
        self.guard = None

    def next_id(self) -> int:
        return next(_ids)

    def opened(self, session: object) -> None: ...

    def closed(self, session: object) -> None: ...


class _Transport:
    """Keeps what was said."""

    def __init__(self) -> None:
        self.said = bytearray()
        self.is_closed = False
        self.is_read = True

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "127.0.0.1", 9

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def write(self, data: bytes) -> None:
        self.said += data

    def writelines(self, parts: list[bytes]) -> None:
        self.said += b"".join(parts)


def deliver(session: asyncio.BufferedProtocol, data: bytes) -> None:
    """Let a session read bytes, as much at once as it takes."""
    rest = memoryview(data)
    while rest:
        room = cast("memoryview", session.get_buffer(-1))
        size = min(len(room), len(rest))
        room[:size] = rest[:size]
        session.buffer_updated(size)
        rest = rest[size:]


class Door:
    """Kafka's entrance of a service, for several connections."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.speaker = KafkaDialect().start(cast("HostPort", _Host(desk)))


class Line:
    """A connection: requests as messages of the schemas, answers alike."""

    def __init__(self, door: Desk | Door, user: User | None = None) -> None:
        door = Door(door) if isinstance(door, Desk) else door
        self._desk = door.desk
        self._session = cast("KafkaSession", door.speaker.session(Origin.CLIENT))
        self._session.identity = Identity(user, None) if user is not None else None
        self._transport = _Transport()
        self._session.connection_made(cast("asyncio.Transport", self._transport))
        self._asked: list[tuple[ApiKey, int]] = []

    def is_closed(self) -> bool:
        """Whether the server ended the connection."""
        return self._transport.is_closed

    def is_read(self) -> bool:
        """Whether the server takes more of what the client sends."""
        return self._transport.is_read

    def drop(self) -> None:
        """Let the connection break."""
        self._session.connection_lost(None)
        self._desk.runtime.end_turn()

    def look(self) -> None:
        """Let the server look at its connections, as it does now and then."""
        self._session.check(self._desk.runtime.time.now)

    def send(self, key: ApiKey, version: int, message: KafkaMessage) -> None:
        """Send a request; `answers` has what came back."""
        self.deliver(self.encoded(key, version, message))

    def send_only(self, key: ApiKey, version: int, message: KafkaMessage) -> None:
        """Send a request within a turn of the server's loop, which does not end."""
        deliver(self._session, self.encoded(key, version, message))

    def deliver(self, data: bytes) -> None:
        """Send bytes, of a request that is `encoded`."""
        deliver(self._session, data)
        self._desk.runtime.end_turn()

    def encoded(self, key: ApiKey, version: int, message: KafkaMessage) -> bytes:
        """The bytes of the next request."""
        api = APIS[key]
        out = bytearray(struct.pack(">hhih", key, version, len(self._asked), -1))
        if api.is_flexible(version):
            out.append(0)
        api.request.write(out, message, version)
        self._asked.append((key, version))
        return struct.pack(">i", len(out)) + out

    def answers(self) -> dict[int, KafkaMessage]:
        """All answers so far, by the number of their request."""
        found: dict[int, KafkaMessage] = {}
        rest = memoryview(bytes(self._transport.said))
        while rest:
            size, number = struct.unpack_from(">ii", rest)
            key, version = self._asked[number]
            start = 9 if APIS[key].is_flexible(version) and key is not ApiKey.API_VERSIONS else 8
            found[number] = APIS[key].response.read(Input(rest[start : 4 + size]), version)
            rest = rest[4 + size :]
        return found

    def ask(self, key: ApiKey, version: int, message: KafkaMessage) -> KafkaMessage:
        """Send a request that is answered at once."""
        self.send(key, version, message)
        return self.answers()[len(self._asked) - 1]

    def produce(self, topic: str, batch: bytes, acks: int) -> None:
        """Send a batch to partition 0."""
        partitions: list[dict[str, Any]] = [{"index": 0, "records": batch}]
        topics = [{"name": topic, "partitions": partitions}]
        message = {"transactional_id": None, "acks": acks, "timeout_ms": 1_000, "topics": topics}
        self.send(ApiKey.PRODUCE, 8, message)
