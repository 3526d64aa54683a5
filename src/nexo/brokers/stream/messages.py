"""A stream with one partition, seen as messages with ids (SPEC J2).

An id is a record's timestamp and its offset, so each is found from the other: the offset is
in the id, and the time index finds where a millisecond begins. No extra state is needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from nexo.batch import decode
from nexo.brokers.stream.delivery import offset_at
from nexo.brokers.stream.partition import Partition
from nexo.errors import InvalidInput
from nexo.model.stream import Id
from nexo.storage.header import Header, parse

_READ_BYTES = 64 * 1024


class MessageLog:
    """The messages of one partition, from ``front`` on.

    Trimming one message must not cost a sync: the front moves at once, and the log drops what
    precedes it later, in larger steps. After a crash some of that is visible again until the
    next trim; groups never deliver it again.
    """

    __slots__ = ("_counted", "_front", "_shown", "partition")

    def __init__(self, partition: Partition, front: int = 0) -> None:
        self.partition = partition
        self._front = self._counted = front
        self._shown = 0
        """Messages from ``_front`` up to ``_counted``; `count` adds the newer ones."""
        self.count()
        self.drop(0)

    @property
    def front(self) -> int:
        """The offset at which messages begin; deleted ones may come first."""
        return max(self._front, self.partition.start_offset)

    @property
    def end(self) -> int:
        """One past the newest message."""
        return self.partition.stable_offset

    def count(self) -> int:
        """How many messages there are."""
        if self._front < self.partition.start_offset:  # retention dropped messages
            self._front = self._counted = self.partition.start_offset
            self._shown = 0
        end = self.end
        if self._counted < end:
            self._shown += self.partition.aborted.missing(self._counted, end)
            self._counted = end
        return self._shown

    # -- trimming and deleting -------------------------------------------------

    def drop(self, count: int) -> int:
        """Remove the oldest ``count`` of the messages just counted; returns the old front.

        The new one is at the next message, after deleted ones.
        """
        first = self._front
        self._front = max(first, min(self.partition.aborted.nth_gap(first, count), self._counted))
        self._shown -= count
        return first

    def deleted(self, offsets: Sequence[int]) -> None:
        """Note that the messages at these ascending offsets are hidden now."""
        self._shown -= bisect_left(offsets, self._counted)
        self.count()
        self.drop(0)

    def newest_entry(self) -> int:
        """The offset at which the newest entry of the log begins."""
        end = self.partition.next_offset
        for entry in self.partition.log.sound_entries(end - 1):
            return parse(entry).base_offset
        return end

    def check_deletable(self, offsets: Sequence[int]) -> None:
        """Reject messages that share an entry: it is visible or hidden as a whole."""
        for offset in offsets:
            header, _ = next(self.partition.read(offset, 1))
            if header.span != 1:
                raise InvalidInput(
                    f"message {offset} was published together with others: only messages that "
                    f"were added singly can be deleted"
                )

    # -- ids -------------------------------------------------------------------

    def offset_from(self, message_id: Id) -> int:
        """The first offset whose id is not below ``message_id``."""
        ms, seq = message_id
        return min(max(seq, self._since(ms)), self._since(ms + 1))

    def is_ahead(self, message_id: Id) -> bool:
        """Whether future messages may have lower ids."""
        return message_id > (self.partition.last_ms, max(0, self.end - 1))

    def _since(self, ms: int) -> int:
        """The first offset whose record is not older than ``ms``."""
        if ms > self.partition.last_ms:
            return self.end
        # The time index leads to the segment's start, which may be far before the front.
        if ms <= self.id_at(self.front)[0]:
            return self.front
        return max(self.front, offset_at(self.partition, ms))

    def id_at(self, offset: int) -> Id:
        """The id of a message; for a deleted one, an id at its place."""
        if offset < 0:
            return 0, 0
        for header, entry in self._read(offset):
            if header.next_offset > offset:
                batch = decode(entry)
                at = batch.index_of(offset)
                return batch.timestamps()[min(at, len(batch) - 1)], offset
        return self.partition.last_ms, offset

    def offsets_of(self, ids: Sequence[Id]) -> list[int]:
        """The offsets of the messages among these ids, in order."""
        wanted = sorted({seq for _, seq in ids})
        stamps = self.timestamps(wanted)
        return sorted({seq for ms, seq in ids if stamps.get(seq) == ms})

    def timestamps(self, offsets: Sequence[int]) -> dict[int, int]:
        """By offset, for each of the ascending ``offsets`` that is a message."""
        found: dict[int, int] = {}
        at = bisect_left(offsets, self.front)
        while at < len(offsets) and offsets[at] < self.end:
            before = at
            for header, entry in self._read(offsets[at]):
                stop = bisect_left(offsets, header.next_offset, at)
                found.update(_stamps(header, entry, offsets[at:stop]))
                at = stop
                if at == len(offsets):
                    return found
            if at == before:
                break
        return found

    def _read(self, offset: int) -> Iterator[tuple[Header, memoryview]]:
        start = self.partition.start_offset
        return self.partition.read(max(offset, start), _READ_BYTES)

    # -- reading ---------------------------------------------------------------

    def entries(
        self, offset: int, count: int, max_bytes: int
    ) -> Iterator[tuple[Header, memoryview]]:
        """At least one entry from ``offset`` on, then up to ``count`` offsets and ``max_bytes``.

        Reads no further than that.
        """
        at, size = max(offset, self.front), 0
        stop = min(at + count, self.end)
        while at < stop:
            before = at
            for header, entry in self._read(at):
                if size and size + header.length > max_bytes:
                    return
                yield header, entry
                size += header.length
                at = header.next_offset
                if at >= stop:
                    return
            if at == before:
                return

    def fitting(self, offset: int, count: int, max_bytes: int) -> int:
        """Where the entries that `entries` yields end; deleted messages are not read."""
        at, offset = self.end, self.partition.aborted.next_gap(offset)
        for header, _ in self.entries(offset, count, max_bytes):
            at = header.next_offset
        return min(at, self.end)


def _stamps(header: Header, entry: memoryview, offsets: Sequence[int]) -> dict[int, int]:
    offsets = [offset for offset in offsets if offset >= header.base_offset]
    if header.span == header.count and header.first_ms == header.last_ms:
        return dict.fromkeys(offsets, header.first_ms)
    batch = decode(entry)
    stamps = dict(zip(batch.offsets, batch.timestamps(), strict=True))
    return {offset: stamps[offset] for offset in offsets if offset in stamps}
