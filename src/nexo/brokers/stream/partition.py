"""One partition: an append-only log, what readers may see of it, and its producers.

Readers see offsets below `stable_offset`: everything after the first record of an open
transaction waits until that is decided, so that nobody skips a record that commits later
(SPEC H1). Offsets in `aborted` are never shown.

An entry is committed or hidden as a whole. It is looked up by its last offset: the front of the
log may lie within an entry, and offsets below it are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from nexo.batch import Batch, encode, encode_plain, retime
from nexo.batch.kafka import retime_kafka
from nexo.brokers.stream.chunks import CHUNK_BYTES, Chunk, ChunkCache
from nexo.brokers.stream.exposed_offsets import ExposureLimit
from nexo.brokers.stream.groups.ranges import RangeSet
from nexo.brokers.stream.producers import MAX_PRODUCERS, Producers, ProducerState
from nexo.errors import Corrupt, InvalidInput, OffsetOutOfRange, PayloadTooLarge
from nexo.model import Buffer
from nexo.storage.header import SIZE, Flags, Header, parse
from nexo.storage.log import SegmentedLog

FUTURE_MS = 60_000
"""How far ahead of the broker's clock a producer's timestamp may be."""
_CACHED_BYTES = 1024**2
"""Larger reads are for one reader that will not need them again."""
_CONTROL, _TRANSACTIONAL = int(Flags.CONTROL), int(Flags.TRANSACTIONAL)


class PartitionCheckpoint(msgspec.Struct, array_like=True, frozen=True):
    """The state of a partition up to ``offset``: recovery reads its log from there."""

    offset: int = 0
    last_ms: int = 0
    producers: list[ProducerState] = []
    aborted: list[tuple[int, int]] = []
    committed: list[tuple[int, int]] = []
    """Ranges of committed transactions after ``offset``."""
    clean_offset: int = 0
    """How far compaction has got."""


class Cold(OffsetOutOfRange):
    """The log no longer holds ``offset``, and the lake was not asked for it yet."""

    def __init__(self, offset: int, start_offset: int) -> None:
        super().__init__(f"offset {offset} is no longer in the log, which begins at {start_offset}")
        self.offset = offset


class Caches(NamedTuple):
    """What was read last from all partitions."""

    log: ChunkCache
    lake: ChunkCache
    """Separate, because reading the lake again costs more than reading the log."""


class Partition:
    """The records of one partition of a stream."""

    __slots__ = (
        "_caches", "aborted", "clean_offset", "committed", "deleted", "grant", "last_ms", "log",
        "open_ranges", "opened_at", "producers", "unsynced",
    )  # fmt: skip

    def __init__(
        self,
        log: SegmentedLog,
        found: PartitionCheckpoint,
        caches: Caches,
        synced: int,
        max_producers: int = MAX_PRODUCERS,
    ) -> None:
        """Recover: read the log from the checkpoint on; undecided transactions are aborted.

        The log is ``synced`` up to that offset, as is everything the broker finds at its start.
        """
        self.log = log
        self.last_ms = found.last_ms
        self.producers = Producers(found.producers, max_producers)
        self.aborted = RangeSet(found.aborted)
        self.deleted = RangeSet()
        """What was deleted by itself since the start; it is in ``aborted`` too."""
        self.committed = RangeSet(found.committed)
        self.clean_offset = found.clean_offset
        self.open_ranges: dict[int, list[tuple[int, int]]] = {}
        """By transaction: what it wrote here and is not decided."""
        self.unsynced = log.next_offset
        """Readers see nothing from here on, because it may not survive a power loss."""
        self.opened_at = log.next_offset
        """Where the log ended when this process first used it."""
        self.grant = ExposureLimit(synced)
        self._caches = caches
        self._recover(min(max(found.offset, log.start_offset), log.next_offset))

    def _recover(self, offset: int) -> None:
        for entry in self.log.sound_entries(offset):
            header = parse(entry)
            self.last_ms = max(self.last_ms, header.last_ms)
            if header.producer_id >= 0:
                self.producers.note(header, header.base_offset)
            end = header.next_offset
            undecided = header.flags & _TRANSACTIONAL and end - 1 not in self.committed
            if undecided or header.flags & _CONTROL:
                self.aborted.add(header.base_offset, end)

    # -- bounds ----------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def next_offset(self) -> int:
        return self.log.next_offset

    @property
    def stable_offset(self) -> int:
        """Where readers stop."""
        if not self.open_ranges:
            return self.unsynced
        undecided = min(ranges[0][0] for ranges in self.open_ranges.values())
        return min(self.unsynced, undecided)

    # -- writing ---------------------------------------------------------------

    def append(self, entry: bytes, batch: Batch, now_ms: int) -> tuple[int, bool]:
        """Store a verified batch; returns its offset and whether it is new.

        A batch that its idempotent producer sent before is not stored again (SPEC G3).
        """
        header = batch.header
        if header.producer_id >= 0:
            known = self.producers.check(header)
            if known is not None:
                return known, False
        head: bytearray = bytearray(entry[:SIZE])
        body: Sequence[Buffer] = [memoryview(entry)[SIZE:]]
        last_ms = header.last_ms
        if not self._timely(batch, now_ms):
            bounds = self.last_ms, max(self.last_ms, now_ms)
            if batch.is_kafka:
                head, body = retime_kafka(header, body[0], *bounds)
            else:
                head, body = retime(batch, *bounds)
            last_ms = parse(head).last_ms
        offset = self.log.append(head, body)
        self.last_ms = last_ms
        if header.producer_id >= 0:
            self.producers.note(header, offset)
        return offset, True

    def add(self, values: Sequence[bytes], types: Sequence[int], now_ms: int) -> int:
        """Store records that arrived without a batch around them; returns the first's offset."""
        last_ms, kind = max(self.last_ms, now_ms), types[0]
        if types.count(kind) == len(types):
            head, body = encode_plain(values, kind, last_ms)
        else:
            head, body = encode(values, types, last_ms)
        offset = self.log.append(head, body)
        self.last_ms = last_ms
        return offset

    def _timely(self, batch: Batch, now_ms: int) -> bool:
        """Adjust timestamps: they never go back within a partition, nor lie far in the future."""
        first_ms, last_ms = batch.header.first_ms, batch.header.last_ms
        in_bounds = self.last_ms <= first_ms <= last_ms <= now_ms + FUTURE_MS
        return in_bounds and (batch.is_kafka or batch.times_ascend())

    def synced(self, end: int) -> None:
        """Show readers what lies below ``end``: it is as durable as the stream promises."""
        self.unsynced = max(self.unsynced, end)

    # -- transactions ----------------------------------------------------------

    def hold(self, transaction: int, first: int, end: int) -> None:
        """Hold back a range just appended until its transaction ends."""
        self.open_ranges.setdefault(transaction, []).append((first, end))

    def commit(self, transaction: int) -> list[tuple[int, int]]:
        """Commit what the transaction wrote here, without showing it yet; returns the ranges."""
        ranges = self.open_ranges.get(transaction, [])
        for first, end in ranges:
            self.committed.add(first, end)
        return ranges

    def abort(self, transaction: int) -> list[tuple[int, int]]:
        """Hide what the transaction wrote here permanently; returns the ranges."""
        ranges = self.open_ranges.get(transaction, [])
        for first, end in ranges:
            self.aborted.add(first, end)
        return ranges

    def settle(self, transaction: int) -> None:
        """Let readers continue: the transaction's end is as durable as promised."""
        for _, end in self.open_ranges.pop(transaction, ()):
            self.synced(end)

    def hide(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Never show these records again."""
        for first, end in ranges:
            self.aborted.add(first, end)
            self.deleted.add(first, end)

    # -- reading ---------------------------------------------------------------

    def check_offset(self, offset: int) -> None:
        """Raise `OffsetOutOfRange` unless reading may start there."""
        if not self.start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is outside {self.start_offset}..{self.next_offset}"
            )

    def read(
        self, offset: int, max_bytes: int, *, as_stored: bool = False
    ) -> Iterator[tuple[Header, memoryview]]:
        """Entries that readers may see, from the one that holds ``offset`` on.

        What Kafka clients sent is converted to columns, unless ``as_stored``. Entries of aborted
        transactions are skipped, so it yields nothing only at the end. The lake has none of them;
        an entry from there may hold a record that was deleted later. Raises `Cold` where `warm`
        must be called first.
        """
        at, stable, size = offset, self.stable_offset, 0
        while at < stable and size < max(max_bytes, 1):
            try:
                chunk = self._chunk(at, max_bytes)
            except (Corrupt, Cold):
                if size:
                    return  # a reader that continues from here gets the error
                raise
            if chunk is None:
                return
            for header, entry in chunk.since(at, as_stored=as_stored):
                if header.base_offset >= stable or (size and size + len(entry) > max_bytes):
                    return
                at = header.next_offset
                if at - 1 not in self.aborted or chunk.in_lake:
                    size += len(entry)
                    yield header, entry
            at = self.aborted.next_gap(max(at, chunk.end))

    def _chunk(self, offset: int, max_bytes: int) -> Chunk | None:
        if offset < self.log.start_offset:
            return self._replayed(offset)
        found = self._caches.log.find(self, offset)
        if found is None:
            data = self.log.read(offset, max(max_bytes, CHUNK_BYTES))
            if not data:
                return None
            found = Chunk.read(data)
            if found.size_bytes <= _CACHED_BYTES:
                self._caches.log.add(self, found)
        return found

    def _replayed(self, offset: int) -> Chunk:
        found = self._caches.lake.find(self, offset)
        if found is None:
            raise Cold(offset, self.start_offset)
        return found

    def cold_after(self, offset: int) -> int | None:
        """The offset to fetch next for a reader at ``offset`` of lake data."""
        chunk = self._caches.lake.find(self, offset)
        if chunk is None or chunk.end >= self.start_offset:
            return None
        return None if self._caches.lake.find(self, chunk.end) else chunk.end

    def warm(self, chunk: Chunk) -> None:
        """Cache a range that the log has dropped, as read from the lake."""
        self._caches.lake.add(self, chunk)

    # -- forgetting ------------------------------------------------------------

    def forget_replayed(self) -> None:
        """Drop what was read from the lake: rows of it may have been deleted there since."""
        self._caches.lake.drop(self)

    def drop_before(self, offset: int) -> int:
        """Drop what lies below ``offset``; returns the bytes freed."""
        freed = self.log.drop_before(min(offset, self.next_offset))
        self._forget_below(self.start_offset)
        return freed

    def _forget_below(self, offset: int) -> None:
        self._caches.log.drop(self)
        if offset > 0:
            self.aborted.remove(0, offset)
            self.deleted.remove(0, offset)
            self.committed.remove(0, offset)

    def cooled(self) -> None:
        """The log was rewritten or closed: drop cached reads."""
        self._caches.log.drop(self)
        self._caches.lake.drop(self)

    def checked(self, offset: int) -> None:
        """A checkpoint at ``offset`` is durable: commits below it need not be kept."""
        if offset:
            self.committed.remove(0, offset)

    def checkpoint(self) -> PartitionCheckpoint:
        """What recovery needs instead of the log up to here; see `checked`."""
        offset = min((r[0][0] for r in self.open_ranges.values()), default=self.next_offset)
        return PartitionCheckpoint(
            offset, self.last_ms, self.producers.state(), list(self.aborted),
            list(self.committed), self.clean_offset,
        )  # fmt: skip


def check_sizes(batch: Batch, max_message_bytes: int) -> None:
    """Reject a batch with a value over the limit, or without any record."""
    if not len(batch):
        raise InvalidInput("a batch needs at least one record")
    if batch.header.span != batch.header.count:
        raise InvalidInput("a published batch must not have gaps between its records")
    if batch.is_kafka:
        check_size(batch.header.length - SIZE, max_message_bytes, "batch")
        return
    values = batch.layout.values
    if not max_message_bytes or values.size <= max_message_bytes:
        return
    check_size(batch.largest_value(), max_message_bytes)


def check_size(value_bytes: int, max_message_bytes: int, what: str = "value") -> None:
    """Reject a value over the limit; 0 means no limit."""
    if max_message_bytes and value_bytes > max_message_bytes:
        raise PayloadTooLarge(
            f"a {what} of {value_bytes} bytes exceeds the stream's limit of {max_message_bytes}"
        )
