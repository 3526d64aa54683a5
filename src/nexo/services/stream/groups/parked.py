"""Use cases of parked records: list, replay, delete (SPEC F3)."""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias

from nexo.access.permit import ADMIN
from nexo.brokers.stream.delivery import Gathered, gather
from nexo.brokers.stream.groups.flight import DeliveredRange
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import NexoError
from nexo.model import Buffer
from nexo.model.stream import ParkedInfo, ParkedList, Range
from nexo.options.described import check_range
from nexo.services.connection import Connection, Done
from nexo.services.stream.core import Core
from nexo.services.stream.groups.taking import GroupTakes
from nexo.services.stream.permits import permit_group
from nexo.services.stream.reading import MAX_LIMIT, MAX_READ_BYTES
from nexo.services.stream.replay import StreamPosition

_ROW_BYTES = 1024**2
"""How much of one parked range is shown."""
ParkedRecords: TypeAlias = tuple[ParkedList, list[Buffer]]
"""Parked ranges, and the batches that hold their records."""


class ParkedService:
    """Records that a group parked after too many deliveries."""

    def __init__(self, core: Core, taking: GroupTakes) -> None:
        self._core = core
        self._taking = taking

    def show(
        self,
        connection: Connection,
        stream: str,
        group: str,
        done: Done[ParkedRecords],
        *,
        limit: int = 100,
        offset: int = 0,
    ) -> None:
        """List parked records, the newest first; fewer than ``limit`` if they are large."""
        permit_group(connection, stream, group)
        check_range("limit", limit, MAX_LIMIT, 1)
        check_range("offset", offset)
        found, shared = self._core.engine.find(stream, group)
        _collect(self._core, found, shared.parked(limit, offset), done)

    def settle(
        self,
        connection: Connection,
        stream: str,
        group: str,
        verb: Literal["replay", "delete"],
        ranges: list[Range] | None,
        done: Done[int],
    ) -> None:
        """Replay or delete parked records (all without ``ranges``); answers how many."""
        permit_group(connection, stream, group, ADMIN)
        found, shared = self._core.engine.find(stream, group)
        count = shared.replay(ranges) if verb == "replay" else shared.discard(ranges)
        self._taking.moved(found, group, shared)
        self._core.done_when_safe(found.options.persistence, done, count)


def _collect(
    core: Core, stream: OpenStream, rows: list[ParkedInfo], done: Done[ParkedRecords]
) -> None:
    """Find parked records, asking the lake for what the log has dropped.

    Some may be damaged, deleted or unreachable: then only the range is shown.
    """
    left = deque((row.partition, row.first, row.end) for row in rows)
    found = Gathered()

    def collect(error: NexoError | None = None) -> None:
        """Continue until everything is found, the reply is full, or the lake must be asked."""
        if error is not None:
            left.popleft()
        while left and found.size_bytes < MAX_READ_BYTES:
            partition, first, end = left[0]
            first = max(first, core.replay.first_offset(stream, partition))
            cold = _add(found, stream, (partition, first, end)) if first < end else None
            if cold is not None:
                left[0] = partition, cold, end
                core.replay.fetch(StreamPosition(stream, partition, cold), collect)
                return
            left.popleft()
        done((ParkedList(rows[: len(rows) - len(left)], found.partitions), found.parts))

    collect()


def _add(found: Gathered, stream: OpenStream, where: Range) -> int | None:
    """Add the records of a range; returns the offset to fetch first, if any."""
    more = gather(stream, [DeliveredRange(*where, 0, 0, 0)], _ROW_BYTES)
    found.parts += more.parts
    found.partitions += more.partitions
    found.size_bytes += more.size_bytes
    return more.cold[0][1] if more.cold else None
