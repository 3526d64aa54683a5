"""Entries read ahead: one read, from the log or from the lake, serves many small takes.

Groups take a large batch, or a run of small ones, in many pieces. The memory is bounded for all
partitions together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from operator import attrgetter

from nexo.batch.kafka import native
from nexo.storage.header import SIZE, Flags, Header, parse

_KAFKA = int(Flags.KAFKA)
CHUNK_BYTES = 256 * 1024
MAX_BYTES = 32 * 1024**2
KEPT_GROWTH = 4
"""A Kafka batch that expands by more than this factor is not cached unpacked."""
PER_PARTITION = 4
"""Readers at different offsets of one partition that can share the cache."""
PER_REPLAY = 16
"""The same for chunks from the lake, which cost more to read again."""


class Chunk:
    """Consecutive whole entries of a partition.

    Offsets from ``first`` up to ``end`` that no entry covers hold no records.
    """

    __slots__ = (
        "_converted", "_has_kafka", "end", "entries", "first", "headers", "in_lake", "size_bytes",
    )  # fmt: skip

    def __init__(
        self,
        entries: list[memoryview],
        headers: list[Header],
        first: int,
        end: int,
        *,
        in_lake: bool = False,
    ) -> None:
        self.entries = entries
        self.headers = headers
        self.first = first
        self.end = end
        self.in_lake = in_lake
        self.size_bytes = flags = 0
        for header in headers:
            self.size_bytes += header.length
            flags |= header.flags
        self._has_kafka = bool(flags & _KAFKA)
        self._converted: dict[int, tuple[Header, memoryview]] = {}

    @classmethod
    def read(cls, data: bytes) -> Chunk:
        """The entries of one read of the log; ``data`` is not empty."""
        entries: list[memoryview] = []
        headers: list[Header] = []
        view, at = memoryview(data), 0
        while at < len(view):
            header = parse(view, at)
            headers.append(header)
            entries.append(view[at : at + header.length])
            at += header.length
        return cls(entries, headers, headers[0].base_offset, headers[-1].next_offset)

    @classmethod
    def replayed(cls, entries: Iterable[bytes], first: int, end: int) -> Chunk:
        """What the lake has from ``first`` up to ``end``."""
        views = [memoryview(entry) for entry in entries]
        return cls(views, [parse(view) for view in views], first, end, in_lake=True)

    def since(self, offset: int, *, as_stored: bool = False) -> Iterator[tuple[Header, memoryview]]:
        """The entries from ``offset`` on: first the one that holds it, or else the next."""
        at = bisect_right(self.headers, offset, key=attrgetter("base_offset")) - 1
        if at >= 0 and self.headers[at].next_offset <= offset:
            at += 1
        at = max(at, 0)
        if as_stored or not self._has_kafka:
            return zip(self.headers[at:], self.entries[at:], strict=True)
        return map(self._native, range(at, len(self.headers)))

    def _native(self, at: int) -> tuple[Header, memoryview]:
        """A Kafka client's entry converted to columns, once."""
        header = self.headers[at]
        if not header.flags & _KAFKA:
            return header, self.entries[at]
        found = self._converted.get(at)
        if found is None:
            header, entry = native(header, self.entries[at][SIZE:])
            found = header, memoryview(entry)
            if len(entry) <= KEPT_GROWTH * self.headers[at].length:
                self._converted[at] = found
        return found


class ChunkCache:
    """The most recently used chunks, by partition."""

    __slots__ = ("_by_owner", "_per_owner", "size_bytes")

    def __init__(self, per_owner: int = PER_PARTITION) -> None:
        self._by_owner: OrderedDict[object, list[Chunk]] = OrderedDict()
        self._per_owner = per_owner
        self.size_bytes = 0

    def find(self, owner: object, offset: int) -> Chunk | None:
        chunks = self._by_owner.get(owner)
        for chunk in chunks or ():
            if chunk.first <= offset < chunk.end:
                if chunks and chunk is not chunks[-1]:
                    chunks.remove(chunk)
                    chunks.append(chunk)
                return chunk
        return None

    def add(self, owner: object, chunk: Chunk) -> None:
        chunks = self._by_owner.setdefault(owner, [])
        self._by_owner.move_to_end(owner)
        chunks.append(chunk)
        self.size_bytes += chunk.size_bytes
        while self.size_bytes > MAX_BYTES and len(self._by_owner) > 1:
            self.drop(next(iter(self._by_owner)))
        while len(chunks) > 1 and (len(chunks) > self._per_owner or self.size_bytes > MAX_BYTES):
            self.size_bytes -= chunks.pop(0).size_bytes

    def drop(self, owner: object) -> None:
        """Drop a partition's chunks, because its log changed or others need the memory."""
        for chunk in self._by_owner.pop(owner, ()):
            self.size_bytes -= chunk.size_bytes
