"""Change data capture: every produce and commit as an event on the system stream (SPEC I6).

Produce events are derived from the logs, behind the stable offset, so a rolled-back
transaction gives none and nothing is ever lost: what was not captured before a crash is
captured after it. Each batch of events names its source in the head (producer id) so that
recovery finds how far the capture had come, and captures nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nexo.brokers.stream.engine import StreamEngine
from nexo.brokers.stream.groups.ordered_state import OffsetCommit
from nexo.brokers.stream.keys import scan
from nexo.brokers.stream.options import StreamOptions
from nexo.brokers.stream.partition import Partition
from nexo.brokers.stream.registry import Stream
from nexo.protocol.batch import Producer, decode, encode_plain
from nexo.protocol.values import ValueType

NAME = "$cdc"
"""No user can create a stream of this name."""
_PARTITION_BITS = 16

_encode = msgspec.json.Encoder().encode


class Produced(msgspec.Struct, frozen=True, tag="stream.produce"):
    """A record became visible."""

    topic: str
    partition: int
    offset: int
    key: str | None
    timestamp: int


class Committed(msgspec.Struct, frozen=True, tag="stream.commit"):
    """An ordered group stored an offset."""

    group_id: str
    topic: str
    partition: int
    offset: int


class Capture:
    """Writes the events of one broker."""

    def __init__(self, engine: StreamEngine, now_ms: int) -> None:
        self._engine = engine
        self.stream = self._ensure(now_ms)
        self._positions: dict[int, int] = {}
        self._recover()

    def _ensure(self, now_ms: int) -> Stream:
        if NAME not in self._engine.streams:
            self._engine.add(NAME, StreamOptions(), now_ms)
        return self._engine.streams.get(NAME)

    def _recover(self) -> None:
        """How far each partition was captured; what is older than the capture is left out."""
        for header, entry in scan(self.stream.partition(0), 0):
            if header.producer_id >= 0:
                last = msgspec.json.decode(decode(entry).value(header.count - 1) or b"{}")
                self._positions[header.producer_id] = last["offset"] + 1

    def sources(self) -> list[Stream]:
        """The streams that were captured before: some of it may be missing after a crash."""
        numbers = {source >> _PARTITION_BITS for source in self._positions}
        found = (self._engine.streams.numbered(number) for number in numbers)
        return [stream for stream in found if stream is not None]

    def follow(self, stream: Stream, now_ms: int) -> bool:
        """Capture what became visible in a stream; says whether anything did."""
        if stream is self.stream:
            return False
        captured = 0
        for index, partition in stream.opened():
            captured += self._follow(stream, index, partition, now_ms)
        return captured > 0

    def _follow(self, stream: Stream, index: int, partition: Partition, now_ms: int) -> bool:
        source = stream.id << _PARTITION_BITS | index
        at = self._positions.get(source)
        if at is None:
            at = partition.opened_at if stream.id < self.stream.id else 0
        if at >= partition.stable_offset:
            return False
        for header, entry in scan(partition, at):
            rows = [row for row in decode(entry).records() if row.offset >= at]
            events = [
                Produced(stream.name, index, row.offset, _text(row.key), row.timestamp_ms)
                for row in rows
            ]
            self._write(events, now_ms, source)
            at = header.next_offset
        self._positions[source] = max(at, partition.stable_offset)
        return True

    def committed(self, group: str, commits: Iterable[OffsetCommit], now_ms: int) -> None:
        """Capture stored offsets."""
        events = [Committed(group, c.topic, c.partition, c.offset) for c in commits]
        self._write(events, now_ms, -1)

    def _write(self, events: list[Produced] | list[Committed], now_ms: int, source: int) -> None:
        if not events:
            return
        target = self.stream.partition(0)
        now_ms = max(now_ms, target.last_ms)
        values = [_encode(event) for event in events]
        head, body = encode_plain(values, ValueType.JSON, now_ms, Producer(source, 0, 0))
        offset = target.log.append(head, body)
        target.last_ms = now_ms
        target.synced(offset + len(values))


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode(errors="replace")
