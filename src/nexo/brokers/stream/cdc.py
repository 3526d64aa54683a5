"""Change data capture: every produce and commit as an event on the system stream (SPEC I6).

Events are derived from durable data: records from the logs, below the stable offset, and
commits from the journal. So a rolled-back transaction gives none, and what was not captured
before a crash is captured after it. The header of each batch of events names its source (as
producer) and how far that is captured (as sequence), so nothing is captured twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from nexo.batch import BatchProducer, decode, encode_plain
from nexo.brokers.stream.engine import StreamEngine
from nexo.brokers.stream.groups.ordered_state import OffsetCommit, OffsetsCommitted
from nexo.brokers.stream.keys import sound
from nexo.brokers.stream.partition import Partition
from nexo.brokers.stream.records import JournalRecord, OrderedChanged
from nexo.brokers.stream.records import TransactionCommitted as Decided
from nexo.brokers.stream.registry import OpenStream
from nexo.model.store import ValueType
from nexo.options.stream import StreamOptions
from nexo.storage.header import SIZE, parse

NAME = "$cdc"
"""No user can create a stream of this name."""
JOURNAL = 0
"""The source of commits; no stream has this number."""
_PARTITION_BITS = 16
_SEQUENCE_BITS = 31

_encode = msgspec.json.Encoder().encode


class Produced(msgspec.Struct, frozen=True, tag="stream.produce"):
    """A record became visible."""

    topic: str
    partition: int
    offset: int
    key: str | None
    timestamp: int


class CommitEvent(msgspec.Struct, frozen=True, tag="stream.commit"):
    """An ordered group stored an offset."""

    group_id: str
    topic: str
    partition: int
    offset: int


class Capture:
    """Writes the events of one broker; its owner exposes them to readers."""

    def __init__(self, engine: StreamEngine, now_ms: int) -> None:
        self._engine = engine
        self.stream = self._ensure(now_ms)
        self._positions: dict[int, int] = {}
        self._recover()

    def _ensure(self, now_ms: int) -> OpenStream:
        if NAME not in self._engine.streams:
            self._engine.add(NAME, StreamOptions(), now_ms)
        return self._engine.streams.get(NAME)

    def _recover(self) -> None:
        """How far each source was captured; anything older than the capture is left out."""
        for source, epoch, batches in self.stream.partition(0).producers.state():
            self._positions[source] = (epoch << _SEQUENCE_BITS) + batches[-1][0]
            place = source >> _PARTITION_BITS, source & ((1 << _PARTITION_BITS) - 1)
            self._engine.captured[place] = self._positions[source]

    def sources(self) -> list[OpenStream]:
        """The streams that were captured before; after a crash some events may be missing."""
        numbers = {source >> _PARTITION_BITS for source in self._positions if source != JOURNAL}
        found = (self._engine.streams.numbered(number) for number in numbers)
        return [stream for stream in found if stream is not None]

    def follow(self, stream: OpenStream, now_ms: int) -> None:
        """Capture records that became visible in a stream."""
        if stream is not self.stream:
            for index, partition in stream.opened():
                self._follow(stream, index, partition, now_ms)

    def _follow(self, stream: OpenStream, index: int, partition: Partition, now_ms: int) -> None:
        source = stream.id << _PARTITION_BITS | index
        at = self._positions.get(source)
        if at is None:
            at = partition.opened_at if stream.id < self.stream.id else 0
        if at >= partition.stable_offset:
            return
        for header, entry in sound(partition, at):
            rows = [row for row in decode(entry).records() if row.offset >= at]
            events = [
                Produced(stream.name, index, row.offset, _text(row.key), row.timestamp_ms)
                for row in rows
            ]
            at = header.next_offset
            self._write(events, now_ms, source, at)
        self._positions[source] = max(at, partition.stable_offset)

    def journalled(self, offset: int, record: JournalRecord, now_ms: int) -> None:
        """Capture the commits of a journalled record."""
        if offset < self._positions.get(JOURNAL, 0):
            return
        events = [
            CommitEvent(group, commit.topic, commit.partition, commit.offset)
            for group, commit in _commits(record)
        ]
        self._write(events, now_ms, JOURNAL, offset + 1)

    def _write(
        self,
        events: list[Produced] | list[CommitEvent],
        now_ms: int,
        source: int,
        position: int,
    ) -> None:
        """Write a batch of events: after a crash all of them are there, or none."""
        if not events:
            return
        target = self.stream.partition(0)
        now_ms = max(now_ms, target.last_ms)
        values = [_encode(event) for event in events]
        low, high = position & ((1 << _SEQUENCE_BITS) - 1), position >> _SEQUENCE_BITS
        head, body = encode_plain(values, ValueType.JSON, now_ms, BatchProducer(source, high, low))
        offset = target.log.append(head, body)
        target.producers.note(parse(head), offset)
        target.last_ms = now_ms
        self._positions[source] = position
        self._engine.grown(self.stream, 0, SIZE + sum(map(len, body)))


def _commits(record: JournalRecord) -> Iterator[tuple[str, OffsetCommit]]:
    match record:
        case OrderedChanged(group, moves):
            for move in moves:
                if isinstance(move, OffsetsCommitted):
                    yield from ((group, commit) for commit in move.offsets)
        case Decided():
            for change in record.changes:
                yield from _commits(change)


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode(errors="replace")
