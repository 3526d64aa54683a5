"""What the stream broker reports: totals, and all streams and groups with their lag, by page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, TypeAlias

from nexo.brokers.stream.engine import StreamEngine
from nexo.brokers.stream.groups.ordered import OrderedGroup
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import NexoError
from nexo.model.stream import GroupKind, GroupSeen, StreamSeen, StreamSurvey

MAX_SURVEY = 1_000
OPENS = 5
"""Logs that one page may open to find their ends; then the page ends."""

MembersOf: TypeAlias = Callable[[str], Mapping[str, int]]
"""Of a group, per stream: how many members only the coordinator knows."""


def broker_status(engine: StreamEngine) -> dict[str, Any]:
    """Totals; `survey` covers each stream and group."""
    return {
        "streams": len(engine.streams),
        "groups": sum(len(stream.groups) for stream in engine.streams) + len(engine.ordered),
        "transactions": len(engine.transactions),
        "published": engine.published,
    }


class _Page:
    """What one page may still do, and what it found."""

    def __init__(self, engine: StreamEngine, limit: int, members: MembersOf) -> None:
        self._engine = engine
        self._members = members
        self._left = limit
        self._opens = OPENS
        self.streams: list[StreamSeen] = []
        self.groups: list[GroupSeen] = []
        self.looked_at = 0

    def fill(
        self, streams: Iterable[OpenStream], ordered: Iterable[tuple[str, OrderedGroup]]
    ) -> None:
        """Add one after another while there is room."""
        for stream in streams:
            weight = stream.options.partitions * (1 + len(stream.groups))
            if not self._room(weight, [stream] if stream.groups else []):
                return
            self.streams.append(_stream(stream))
            with contextlib.suppress(NexoError):  # a damaged log hides only its own groups
                self.groups += _shared(stream)
        for name, group in ordered:
            topics = _streams_of(self._engine, group)
            weight = 1 + sum(stream.options.partitions for stream in topics)
            if not self._room(weight, topics):
                return
            with contextlib.suppress(NexoError):
                others = self._members(name)
                self.groups += [_ordered(name, group, stream, others) for stream in topics]

    def _room(self, weight: int, read: Iterable[OpenStream]) -> bool:
        """Whether the page has room for this too; the first item always fits, so rounds end."""
        closed = sum(s.options.partitions - sum(1 for _ in s.opened()) for s in read)
        if self.looked_at and (self._left < weight or self._opens < closed):
            return False
        self._left -= weight
        self._opens -= closed
        self.looked_at += 1
        return True


def _streams_of(engine: StreamEngine, group: OrderedGroup) -> list[OpenStream]:
    """The streams that an ordered group reads."""
    return [engine.streams.get(name) for name in group.topics if name in engine.streams]


def ordered_lag(group: OrderedGroup, stream: OpenStream) -> int:
    """What a group has not processed; where it never committed, everything."""
    return sum(
        stream.unread(index, _position(group, stream, index))
        for index in range(stream.options.partitions)
    )


def _position(group: OrderedGroup, stream: OpenStream, index: int) -> int:
    kept = group.committed(stream.name, index)
    return kept.offset + 1 if kept else 0


def survey(engine: StreamEngine, position: int, limit: int, members: MembersOf) -> StreamSurvey:
    """The page at ``position``, bounded work: streams in order of creation, then ordered groups."""
    streams, ordered = len(engine.streams), len(engine.ordered)
    page = _Page(engine, limit, members)
    page.fill(
        islice(engine.streams, position, None),
        islice(engine.ordered.items(), max(0, position - streams), None),
    )
    after = position + page.looked_at
    following = after if after < streams + ordered else 0
    return StreamSurvey(streams=page.streams, groups=page.groups, next=following)


def _stream(stream: OpenStream) -> StreamSeen:
    opened = [part for _, part in stream.opened()]
    return StreamSeen(
        stream.name,
        stream.options.partitions,
        sum(part.next_offset - part.start_offset for part in opened),
        sum(part.log.size_bytes for part in opened),
        sum(part.next_offset for part in opened),
        len(stream.groups),
    )


def _shared(stream: OpenStream) -> list[GroupSeen]:
    if not stream.groups:
        return []
    ends = stream.ends()
    published = sum(part.next_offset for part in stream.partitions())
    return [_group(stream, name, ends, published) for name in stream.groups]


def _group(stream: OpenStream, name: str, ends: list[int], published: int) -> GroupSeen:
    group = stream.groups[name]
    counts = group.status(ends)
    lag = sum(each.lag for each in counts)
    kind: GroupKind = "shared" if group.claims is None else "xstreams"
    return GroupSeen(
        stream.name, name, kind, lag, sum(each.in_flight for each in counts),
        sum(each.parked for each in counts), sum(1 for _ in group.members), published - lag,
    )  # fmt: skip


def _ordered(
    name: str, group: OrderedGroup, stream: OpenStream, others: Mapping[str, int]
) -> GroupSeen:
    finished = sum(
        max(_position(group, stream, index), part.start_offset)
        for index, part in enumerate(stream.partitions())
    )
    owners = {owner for (topic, _), owner in group.owners.items() if topic == stream.name}
    lag = ordered_lag(group, stream)
    consumers = len(owners) or others.get(stream.name, 0)
    return GroupSeen(stream.name, name, "ordered", lag, 0, 0, consumers, finished)
