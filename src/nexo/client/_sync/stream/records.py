# Generated from _async/stream/records.py by tools/unasync.py; edit that file instead.
"""Records that a consumer of a shared group holds: one by one, or a batch (SPEC F)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

from nexo.client.checks import reason_text
from nexo.client.replies import Reply
from nexo.client.stream_records import Record, batches_in
from nexo.model.stream import Range, Verb
from nexo.options.units import Duration, millis
from nexo.protocol import stream as wire

T = TypeVar("T")

_NOTHING = wire.pack_headed(wire.TakeReply(0, [], []))


class RecordHolder(Protocol):
    """A consumer as its records see it."""

    stream: str
    group: str
    type_: Any

    @property
    def name(self) -> str:
        """The server's name for it."""

    def send(
        self,
        verb: Verb,
        generation: int,
        ranges: list[Range],
        delay_ms: int = 0,
        reason: str = "",
    ) -> None:
        """Settle ranges of records; raises the error of the first rejected one."""


class StreamRecord(Record[T]):
    """A record leased to this consumer until it is acked, nacked, or the lease runs out."""

    __slots__ = ("consumer", "expires_ms", "generation")

    def __init__(
        self,
        consumer: RecordHolder,
        generation: int,
        lease: tuple[int, int, int, int, int],
        row: Any,
    ) -> None:
        super().__init__(lease[0], row, consumer.type_, lease[3])
        self.generation = generation
        self.expires_ms = lease[4]
        self.consumer = consumer
        """The consumer that holds its lease."""

    @property
    def range(self) -> Range:
        """The range that it alone is."""
        return self.partition, self.offset, self.offset + 1

    def ack(self) -> None:
        """Finish it; `Fenced` or `NotPending` if this consumer no longer holds it."""
        self.consumer.send("ack", self.generation, [self.range])

    def nack(self, reason: object = "", *, delay: Duration = 0) -> None:
        """Report a failure: redelivered at once or after ``delay``, or parked."""
        delay_ms, text = millis(delay, "delay"), reason_text(reason)
        self.consumer.send("nack", self.generation, [self.range], delay_ms, text)

    def release(self) -> None:
        """Return the record unworked: redelivered at once, without counting an attempt."""
        self.consumer.send("release", self.generation, [self.range])

    def extend(self) -> None:
        """Restart the lease."""
        self.consumer.send("extend", self.generation, [self.range])


class Records(Sequence[StreamRecord[T]], Generic[T]):
    """Records that were fetched together; `ack` finishes all of them at once.

    Record objects are created on access.
    """

    __slots__ = ("_batches", "_consumer", "_head", "_made", "_size_bytes")

    def __init__(self, consumer: RecordHolder, reply: Reply) -> None:
        self._head, rest = wire.unpack_headed(wire.TakeReply, reply or _NOTHING)
        self._batches = list(zip(self._head.partitions, batches_in(rest), strict=True))
        self._size_bytes = len(rest)
        self._consumer = consumer
        self._made: list[StreamRecord[T]] | None = None

    @overload
    def __getitem__(self, index: int) -> StreamRecord[T]: ...
    @overload
    def __getitem__(self, index: slice) -> list[StreamRecord[T]]: ...
    def __getitem__(self, index: int | slice) -> StreamRecord[T] | list[StreamRecord[T]]:
        return self._all()[index]

    @property
    def generation(self) -> int:
        """The generation of the group that they were leased in."""
        return self._head.generation

    @property
    def refused(self) -> list[str]:
        """Why some records were not settled by the request which took these."""
        return [each.message for each in self._head.refused]

    def are_many(self, limit: int) -> bool:
        """Whether as many came as were asked for, or half a reply's bytes: more are waiting."""
        return len(self) >= limit or self._size_bytes >= wire.DEFAULT_BYTES // 2

    def __len__(self) -> int:
        return sum(end - first for _, first, end, _, _ in self._head.deliveries)

    def __repr__(self) -> str:
        return f"<Records of stream {self._consumer.stream!r}: {len(self)}>"

    def __iter__(self) -> Iterator[StreamRecord[T]]:
        return iter(self._all())

    def _all(self) -> list[StreamRecord[T]]:
        if self._made is None:
            self._made = [*self._make()]
        return self._made

    def _make(self) -> Iterator[StreamRecord[T]]:
        generation = self._head.generation
        for partition, batch in self._batches:
            leases = self._leases(partition)
            for row in batch.rows():
                for lease in leases:
                    if lease[1] <= row[0] < lease[2]:
                        yield StreamRecord(self._consumer, generation, lease, row)

    def payloads(self) -> list[bytes | None]:
        """The bytes of every value, in one pass: the fastest access to the data."""
        found: list[bytes | None] = []
        for partition, batch in self._batches:
            leases, offsets = self._leases(partition), batch.offsets
            values = batch.values()
            if len(leases) == 1 and leases[0][1] <= offsets[0] and offsets[-1] < leases[0][2]:
                found += values
            else:
                found += [
                    value
                    for offset, value in zip(offsets, values, strict=True)
                    if any(first <= offset < end for _, first, end, _, _ in leases)
                ]
        return found

    def _leases(self, partition: int) -> list[tuple[int, int, int, int, int]]:
        return [lease for lease in self._head.deliveries if lease[0] == partition]

    def ack(self) -> None:
        """Finish all of them, with one request."""
        self._consumer.send("ack", self._head.generation, self._ranges())

    def nack(self, reason: object = "", *, delay: Duration = 0) -> None:
        """Report all as failed: redelivered at once or after ``delay``, or parked."""
        delay_ms, text = millis(delay, "delay"), reason_text(reason)
        self._consumer.send("nack", self._head.generation, self._ranges(), delay_ms, text)

    def release(self) -> None:
        """Return all of them, without counting an attempt."""
        self._consumer.send("release", self._head.generation, self._ranges())

    def _ranges(self) -> list[Range]:
        return [(p, first, end) for p, first, end, _, _ in self._head.deliveries]


def ranges_of(records: Iterable[StreamRecord[Any]]) -> dict[int, list[Range]]:
    """The ranges that records form, by generation."""
    found: dict[int, list[Range]] = {}
    for record in records:
        add_range(found.setdefault(record.generation, []), record.partition, record.offset)
    return found


def add_range(ranges: list[Range], partition: int, offset: int) -> None:
    """Add one record, extending the last range if it is adjacent."""
    if ranges and ranges[-1][0] == partition and ranges[-1][2] == offset:
        ranges[-1] = (partition, ranges[-1][1], offset + 1)
    else:
        ranges.append((partition, offset, offset + 1))
