"""All streams of the broker. A stream costs a few hundred bytes until it is used (SPEC E1)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import TypeAlias

from msgspec import structs

from nexo.batch.partitions import Growths, partition_of
from nexo.brokers.stream.chunks import PER_REPLAY, ChunkCache
from nexo.brokers.stream.exposed_offsets import ahead, jump
from nexo.brokers.stream.groups.ranges import RangeSet
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.partition import Caches, Partition, PartitionCheckpoint
from nexo.brokers.stream.producers import MAX_PRODUCERS
from nexo.brokers.stream.records import StreamCreated, StreamState
from nexo.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    PartitionsChanged,
    StreamReplaced,
)
from nexo.model import Persistence, path_segment
from nexo.options.stream import StreamOptions
from nexo.storage.log import SegmentedLog

MAX_SOURCES = 1 << 30
"""Producers of a system stream stand for other partitions: none may be dropped."""
READABLE = 180
"""How much of a long name its folder shows; the number keeps folders distinct."""

OpenLog: TypeAlias = Callable[[str, int, Persistence], SegmentedLog]
"""``open_log(folder, partition, persistence)``."""
ExposedEnd: TypeAlias = Callable[["OpenStream", int], int]
"""One past the highest offset of a partition ever exposed; see `OpenStream.partition`."""


class OpenStream:
    """One stream: its options, groups and partitions, which are opened on first use."""

    __slots__ = (
        "_caches", "_exposed_end", "_hidden", "_open_log", "_opened", "_recommitted", "_turn",
        "checkpoints", "created_ms", "front", "groups", "growths", "id", "name", "options",
        "tiered",
    )  # fmt: skip

    def __init__(
        self, created: StreamCreated, open_log: OpenLog, exposed_end: ExposedEnd, caches: Caches
    ) -> None:
        self.id = created.stream
        self.name = created.name
        self.options = created.options
        self.created_ms = created.created_ms
        count = created.options.partitions
        self.checkpoints: dict[int, PartitionCheckpoint] = {}
        self.tiered = [0] * count
        """Per partition: the lake holds everything below."""
        self.front = 0
        """Messages (`nexo.xstreams`) below were trimmed, even if the log still has them."""
        self.groups: dict[str, SharedGroup] = {}
        self.growths = Growths()
        self._opened: dict[int, Partition] = {}
        self._recommitted: dict[int, RangeSet] = {}
        self._hidden: dict[int, list[tuple[int, int]]] = {}
        self._open_log = open_log
        self._exposed_end = exposed_end
        self._caches = caches
        self._turn = 0

    @property
    def folder(self) -> str:
        """The name of the folder that holds its logs; never used by another stream."""
        return f"{path_segment(self.name)[:READABLE]}~{self.id:x}"

    @property
    def is_system(self) -> bool:
        """Whether only the broker itself writes to it."""
        return self.name.startswith("$")

    def check_writable(self) -> None:
        """Raise `Forbidden` for a system stream."""
        if self.is_system:
            raise Forbidden(f"stream {self.name!r} belongs to the broker: it can only be read")

    def check_incarnation(self, created_ms: int) -> None:
        """Raise `StreamReplaced` for another incarnation than this one; 0 accepts any."""
        if created_ms and created_ms != self.created_ms:
            raise StreamReplaced(
                f"stream {self.name!r} was created at {self.created_ms} ms, not at {created_ms}: "
                "it was deleted and created again; describe it and start over"
            )

    def check_count(self, count: int) -> None:
        """Raise `PartitionsChanged` if a sender chose a partition by another count (SPEC E2)."""
        if count != self.options.partitions:
            raise PartitionsChanged(
                f"stream {self.name!r} has {self.options.partitions} partitions, not {count}: "
                "some were added, or it was created again; describe it and send again"
            )

    # -- growing -----------------------------------------------------------------------

    def grow(self, options: StreamOptions, ends: list[int]) -> None:
        """Add partitions; those that were there end at ``ends`` (SPEC E1)."""
        self.growths.ends.append(ends)
        self.tiered += [0] * (options.partitions - len(self.tiered))
        for group in self.groups.values():
            group.grow(options.partitions)
        self.options = options

    def check_growable(self) -> None:
        """Raise unless partitions can be added."""
        self.check_writable()
        if any(group.claims is not None for group in self.groups.values()):
            raise Conflict(
                f"stream {self.name!r} is read by nexo.xstreams, whose ids count the messages of "
                "one partition: partitions cannot be added"
            )

    @property
    def counts(self) -> list[int]:
        """The number of partitions at first, after each growth, and so now."""
        partitions = self.options.partitions
        return self.growths.counts(partitions) if self.growths.ends else [partitions]

    def homes(self, key: bytes) -> list[int]:
        """The partitions of a key: that of now first, then those that it had before."""
        return self.growths.homes(key, self.options.partitions)

    def partition(self, index: int) -> Partition:
        """One partition, opened if necessary.

        A power loss may remove ``file_async`` records that groups, the lake or others know. The log
        then continues after them, so that no offset is ever used twice (SPEC E2).
        """
        found = self._opened.get(index)
        return found if found is not None else self._open(index)

    def _open(self, index: int) -> Partition:
        if not 0 <= index < self.options.partitions:
            raise InvalidInput(
                f"partition {index} does not exist: stream {self.name!r} has "
                f"{self.options.partitions}, from 0"
            )
        log = self._open_log(self.folder, index, self.options.persistence)
        synced = log.next_offset
        jump(log, self._exposed_end(self, index))
        limit = MAX_SOURCES if self.is_system else MAX_PRODUCERS
        found = Partition(log, self._checkpoint(index), self._caches, synced, limit)
        self._opened[index] = found
        return found

    def jump_ahead(self) -> Iterator[tuple[int, int, int]]:
        """After a power loss, before the first use: skip every offset that was exposed before.

        Yields partition, first and end of what holds no records. Not durable by itself.
        """
        for index in range(self.options.partitions):
            log = self._open_log(self.folder, index, self.options.persistence)
            end = max(log.next_offset, self._exposed_end(self, index))
            first, following = log.next_offset, end + ahead(end)
            jump(log, following)
            log.close()
            yield index, first, following

    def known_end(self, index: int) -> int:
        """One past the highest offset of a partition that its groups and the lake know of."""
        ends = [group.known_end(index) for group in self.groups.values()]
        return max(self.tiered[index], *ends) if ends else self.tiered[index]

    def recommit(self, index: int, first: int, end: int) -> None:
        """Apply a journalled commit of this range; only before the first use."""
        self._recommitted.setdefault(index, RangeSet()).add(first, end)

    def rehide(self, index: int, ranges: list[tuple[int, int]]) -> None:
        """Apply a journalled deletion of these records; only before the first use."""
        self._hidden.setdefault(index, []).extend(ranges)

    def _checkpoint(self, index: int) -> PartitionCheckpoint:
        found = self.checkpoints.get(index, PartitionCheckpoint())
        later, hidden = self._recommitted.pop(index, None), self._hidden.pop(index, None)
        if later is not None:
            found = structs.replace(found, committed=[*found.committed, *later])
        if hidden is not None:
            found = structs.replace(found, aborted=[*found.aborted, *hidden])
        if later is not None or hidden is not None:
            self.checkpoints[index] = found
        return found

    def partitions(self) -> list[Partition]:
        """All partitions, opened."""
        return [self.partition(index) for index in range(self.options.partitions)]

    def opened(self) -> Iterator[tuple[int, Partition]]:
        """The partitions in use since the start."""
        return iter(sorted(self._opened.items()))

    def ends(self) -> list[int]:
        """Per partition: one past the last offset that readers see."""
        opened = self._opened
        return [
            (opened.get(index) or self.partition(index)).stable_offset
            for index in range(self.options.partitions)
        ]

    def unread(self, index: int, offset: int) -> int:
        """How many records readers find from ``offset`` on; in the lake every offset counts."""
        part = self.partition(index)
        start, end = part.start_offset, part.stable_offset
        in_lake = max(0, start - offset) if self.tiered[index] >= start else 0
        return in_lake + part.aborted.missing(max(offset, start), end)

    def partition_of(self, key: bytes) -> int:
        """The partition of a key."""
        return partition_of(key, self.options.partitions)

    def next_partition(self) -> int:
        """Round robin, for records without a key."""
        self._turn = (self._turn + 1) % self.options.partitions
        return self._turn

    def group(self, name: str) -> SharedGroup:
        """A shared group; `NotFound` if there is none."""
        found = self.groups.get(name)
        if found is None:
            raise NotFound(f"group {name!r} of stream {self.name!r} not found: join it first")
        return found

    def close(self) -> None:
        """Close the logs."""
        for _, part in self.opened():
            part.cooled()
            part.log.close()

    def state(self, *, synced: bool) -> StreamState:
        """Everything about the stream that is not in its logs.

        If these are ``synced`` it covers all that is in them; otherwise it uses the last
        checkpoints.
        """
        for index, part in self.opened():
            if synced:
                self.checkpoints[index] = part.checkpoint()
            elif part.committed or part.deleted:
                known = self.checkpoints.get(index, PartitionCheckpoint())
                hidden = RangeSet([*known.aborted, *part.deleted])
                known = structs.replace(known, committed=list(part.committed), aborted=list(hidden))
                self.checkpoints[index] = known
        for index in {*self._recommitted, *self._hidden}:
            self._checkpoint(index)
        return StreamState(
            StreamCreated(self.id, self.name, self.options, self.created_ms),
            self.checkpoints,
            self.tiered,
            {name: group.snapshot() for name, group in self.groups.items()},
            self.front,
            self.growths.ends,
        )

    def unchecked(self) -> Iterator[int]:
        """The partitions whose last checkpoint is older than their log."""
        for index, part in self.opened():
            if self.checkpoints.get(index, PartitionCheckpoint()).offset < part.next_offset:
                yield index


class StreamRegistry:
    """The streams by name and by number."""

    def __init__(self, open_log: OpenLog, exposed_end: ExposedEnd) -> None:
        self._open_log = open_log
        self._exposed_end = exposed_end
        self._caches = Caches(ChunkCache(), ChunkCache(per_owner=PER_REPLAY))
        self._by_name: dict[str, OpenStream] = {}
        self._by_id: dict[int, OpenStream] = {}
        self._sorted: list[str] | None = None
        self.next_id = 1
        self.last_created_ms = 0
        """The latest creation of any stream, deleted ones included: no two are equal."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[OpenStream]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> OpenStream:
        """The stream of that name; `NotFound` if there is none."""
        found = self._by_name.get(name)
        if found is None:
            raise NotFound(f"stream {name!r} not found: create it first")
        return found

    def named(self, name: str) -> OpenStream | None:
        """The stream of that name, if there is one."""
        return self._by_name.get(name)

    def names(self, prefix: str, after: str) -> Iterator[str]:
        """Names in order that begin with ``prefix``, starting after ``after``."""
        if self._sorted is None:
            self._sorted = sorted(self._by_name)
        names = self._sorted
        at = max(bisect_left(names, prefix), bisect_right(names, after))
        return takewhile(lambda name: name.startswith(prefix), islice(names, at, None))

    def numbered(self, stream: int) -> OpenStream | None:
        """The stream of that number, unless it was deleted."""
        return self._by_id.get(stream)

    def add(self, created: StreamCreated) -> OpenStream:
        stream = OpenStream(created, self._open_log, self._exposed_end, self._caches)
        self._by_name[stream.name] = self._by_id[stream.id] = stream
        self._sorted = None
        self.next_id = max(self.next_id, stream.id + 1)
        self.last_created_ms = max(self.last_created_ms, stream.created_ms)
        return stream

    def remove(self, stream: int) -> OpenStream | None:
        """Remove a stream; returns it if it was known."""
        found = self._by_id.pop(stream, None)
        if found is not None:
            del self._by_name[found.name]
            self._sorted = None
        return found

    def restore(self, state: StreamState) -> None:
        """Restore a stream from a snapshot."""
        stream = self.add(state.created)
        stream.checkpoints = dict(state.checkpoints)
        stream.tiered = list(state.tiered)
        stream.front = state.front
        stream.growths = Growths(state.growths)
        stream.groups = {name: SharedGroup.restore(group) for name, group in state.groups.items()}
