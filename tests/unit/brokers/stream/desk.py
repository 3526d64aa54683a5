"""The stream service on a clock and files of the test's own, with connections that remember."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from nexo.access.login import Identity
from nexo.batch import BatchProducer, BatchRecord, EntryParts, decode, encode, entries
from nexo.dialects.nexo.stream.requests import StreamRequests
from nexo.errors import NexoError
from nexo.model import Buffer, Persistence
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import publish_head, read_places
from nexo.services.stream.service import StreamService
from nexo.storage.ports import Files
from tests.manual_runtime import ManualRuntime
from tests.memory_files import MemoryFiles

T = TypeVar("T")


class StreamRuntime(ManualRuntime):
    """With ``slow_disk`` syncs take until the test says so."""

    folder = Path("/stream")

    def __init__(self, files: Files, **settings: Any) -> None:
        super().__init__(files, **settings)
        self.slow_disk = False
        self.unsynced: list[Callable[[NexoError | None], None]] = []

    def end_turn(self) -> bool:
        """This turn and those that it asks for."""
        ended = super().end_turn()
        while super().end_turn():
            pass
        return ended

    def committed(self, mode: Persistence, callback: Callable[[NexoError | None], None]) -> None:
        if mode is Persistence.FILE_SYNC:
            self.when_synced(callback)
        else:
            callback(None)

    def when_synced(self, callback: Callable[[NexoError | None], None]) -> None:
        if self.slow_disk:
            self.unsynced.append(callback)
        else:
            callback(None)

    def when_unique(self, callback: Callable[[NexoError | None], None]) -> None:
        self.when_synced(callback)

    def sync(self, error: NexoError | None = None) -> None:
        waiting, self.unsynced = self.unsynced, []
        for callback in waiting:
            callback(error)
        self.end_turn()


class Got(NamedTuple):
    """A record a consumer holds."""

    partition: int
    offset: int
    value: bytes | None
    attempt: int


class Peer:
    """A connection that remembers its replies."""

    ids = count(1)

    def __init__(self, desk: Desk, *, coded: bool = True) -> None:
        self.id = next(Peer.ids)
        self.name = f"client-{self.id}"
        self.said_hello = coded
        self.identity: Identity | None = None
        self.closed = False
        self.congested = False
        self.resends = False
        self.replies: dict[int, Any] = {}
        self._desk = desk
        self._requests = count(1)

    def ok(self, request_id: int) -> None:
        self.replies[request_id] = "ok"

    def null(self, request_id: int) -> None:
        self.replies[request_id] = None

    def data(self, request_id: int, *parts: Buffer) -> None:
        self.replies[request_id] = b"".join(parts)

    def fail(self, request_id: int, error: NexoError) -> None:
        self.replies[request_id] = error

    def push(self, frames: Buffer) -> None: ...

    def kick(self, reason: str) -> None:
        self.close()

    # -- what the client does

    def send(self, op: int, payload: bytes) -> int:
        """Start a request; its id."""
        request_id = next(self._requests)
        try:
            self._desk.handlers[op](self, request_id, memoryview(payload))
        except NexoError as error:
            self.replies[request_id] = error
        self._desk.runtime.end_turn()
        return request_id

    def ask(self, op: int, payload: bytes = b"") -> Any:
        """Send a request and give its reply; an error is raised."""
        reply = self.replies[self.send(op, payload)]
        if isinstance(reply, NexoError):
            raise reply
        return reply

    def call(self, op: int, message: Any, reply: type[T]) -> T:
        return wire.unpack(reply, self.ask(op, wire.pack(message)))

    def make(self, stream: str, **options: Any) -> wire.StreamInfo:
        return self.call(Op.S_MAKE, wire.Make(stream=stream, options=options), wire.StreamInfo)

    def describe(self, stream: str) -> wire.StreamInfo:
        return self.call(Op.S_DESCRIBE, wire.StreamName(stream=stream), wire.StreamInfo)

    def publish(
        self, stream: str, *values: bytes | None, partition: int = 0, count: int = 0, **options: Any
    ) -> list[tuple[int, int, int]]:
        """Where the batch went: partition, offset, count each."""
        payload = self.batch(*values, **options)
        reply = self.ask(Op.S_PUBLISH, publish_head(stream, partition, count) + payload)
        return list(read_places(reply))

    def batch(
        self,
        *values: bytes | None,
        keys: list[bytes | None] | None = None,
        producer: BatchProducer | None = None,
        now_ms: int | None = None,
        **options: Any,
    ) -> bytes:
        now_ms = self._desk.runtime.time.now if now_ms is None else now_ms
        who = producer or BatchProducer()
        return joined(encode(values, 0, now_ms, keys=keys, producer=who, **options))

    def join(self, stream: str, group: str, **options: Any) -> Consumer:
        ask = wire.GroupJoin(stream=stream, group=group, **options)
        return Consumer(self, ask, self.call(Op.S_GROUP_JOIN, ask, wire.GroupJoined))

    def group(self, stream: str, group: str) -> wire.GroupInfo:
        ask = wire.GroupsAsk(stream=stream, group=group)
        return self.call(Op.S_GROUPS, ask, list[wire.GroupInfo])[0]

    def read(self, stream: str, offset: int = 0, partition: int = 0) -> list[bytes | None]:
        """Values from ``offset`` on, as one reply gives them."""
        return [row.value for row in self.rows(stream, offset, partition)]

    def rows(self, stream: str, offset: int = 0, partition: int = 0) -> list[BatchRecord]:
        """Records from ``offset`` on, as one reply gives them."""
        ask = wire.Read(stream, partition, offset, 1 << 20)
        _, rest = wire.unpack_headed(wire.ReadReply, self.ask(Op.S_READ, wire.pack(ask)))
        rows = [row for entry in entries(rest) for row in decode(entry).records()]
        return [row for row in rows if row.offset >= offset]

    def close(self) -> None:
        self.closed = True
        self._desk.service.connection_closed(self)
        self._desk.runtime.end_turn()


class Consumer:
    """A consumer of a shared group."""

    def __init__(self, peer: Peer, ask: wire.GroupJoin, joined: wire.GroupJoined) -> None:
        self.peer = peer
        self.name = joined.consumer
        self.generation = joined.generation
        self._stream, self._group = ask.stream, ask.group

    def poll(
        self, limit: int = 100, wait_ms: int = 1_000, max_bytes: int = 1 << 20, begins: int = 0
    ) -> int:
        take = wire.Take(self._stream, self._group, self.name, limit, wait_ms, max_bytes, begins)
        return self.peer.send(Op.S_TAKE, wire.pack(take))

    def take(self, limit: int = 100, max_bytes: int = 1 << 20, begins: int = 0) -> list[Got]:
        reply = self.peer.replies[self.poll(limit, 0, max_bytes, begins)]
        if isinstance(reply, NexoError):
            raise reply
        return self.opened(reply)

    def opened(self, reply: bytes) -> list[Got]:
        """The leased records of a reply, in order."""
        head, rest = wire.unpack_headed(wire.TakeReply, reply)
        self.generation = head.generation
        attempts = {
            (p, offset): attempt
            for p, first, end, attempt, _ in head.deliveries
            for offset in range(first, end)
        }
        found = [
            Got(p, row.offset, row.value, attempts[p, row.offset])
            for p, entry in zip(head.partitions, entries(rest), strict=True)
            for row in decode(entry).records()
            if (p, row.offset) in attempts
        ]
        assert len(found) == len(attempts), "a leased record did not come"
        return found

    def settle(
        self,
        verb: wire.Verb,
        *offsets: int,
        partition: int = 0,
        delay_ms: int = 0,
        begins: list[wire.Range] | None = None,
    ) -> list[wire.RefusedRange]:
        ranges = [(partition, offset, offset + 1) for offset in offsets]
        who = self._stream, self._group, self.name, self.generation
        ask = wire.SettleRecords(*who, verb, ranges, delay_ms, "", begins or [])
        return self.peer.call(Op.S_SETTLE, ask, list[wire.RefusedRange])


class Desk:
    """A running service."""

    runtime_type: type[StreamRuntime] = StreamRuntime

    def __init__(self, files: Files | None = None, now: int = 1_000_000, **given: Any) -> None:
        self.files = files or MemoryFiles()
        self.settings = given
        self.runtime = self.runtime_type(self.files, **given)
        self.runtime.time.now = now
        self.service = StreamService(self.runtime)
        self.handlers = StreamRequests(self.service).handlers
        self.service.open()

    def client(self, *, coded: bool = True) -> Peer:
        return Peer(self, coded=coded)

    def after(self, ms: int) -> None:
        """Let time pass."""
        self.runtime.time.now += ms
        self.service.tick(self.runtime.time.now)
        self.runtime.end_turn()

    def crash(self) -> Desk:
        """The service again, after its process was killed."""
        return Desk(self.files, self.runtime.time.now, **self.settings)

    def restart(self) -> Desk:
        """The service again, after a graceful stop."""
        self.service.close()
        return self.crash()


def joined(entry: EntryParts) -> bytes:
    return bytes(entry[0]) + b"".join(entry[1])
