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
from nexo.storage.header import Header

_READ_BYTES = 64 * 1024


class MessageLog:
    """The messages of one partition, from ``front`` on.

    Trimming one message must not cost a sync: the front moves at once, and the log drops what
    precedes it later, in larger steps. After a crash some of that is visible again until the
    next trim; groups never deliver it again.
    """

    __slots__ = ("_front", "partition")

    def __init__(self, partition: Partition, front: int = 0) -> None:
        self.partition = partition
        self._front = max(front, partition.start_offset)

    @property
    def front(self) -> int:
        """The offset at which messages begin; the first ones may be deleted."""
        return max(self._front, self.partition.start_offset)

    @property
    def end(self) -> int:
        """One past the newest message."""
        return self.partition.stable_offset

    def __len__(self) -> int:
        return self._count(self.front)

    def _count(self, first: int) -> int:
        if not self.partition.aborted:
            return max(0, self.end - first)
        return sum(stop - start for start, stop in self._shown(first))

    def _shown(self, first: int) -> Iterator[tuple[int, int]]:
        split = self.partition.aborted.split(first, self.end)
        return ((start, stop) for start, stop, hidden in split if not hidden)

    # -- trimming and deleting -------------------------------------------------

    def cut(self, max_length: int) -> int:
        """The offset from which at most ``max_length`` messages remain."""
        if not self.partition.aborted:
            return max(self.front, self.end - max_length)
        for start, stop in reversed(list(self._shown(self.front))):
            if stop - start >= max_length:
                return stop - max_length if max_length else self.end
            max_length -= stop - start
        return self.front

    def move_front(self, offset: int) -> tuple[int, int]:
        """Drop what precedes ``offset``; returns the old front, and how many messages."""
        first, before = self.front, len(self)
        self._front = max(first, offset)
        return first, before - len(self)

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
        """Where the entries that `entries` yields end."""
        at = self.end
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
