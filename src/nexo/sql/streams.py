"""One stream as a query sees it: a snapshot of its table, then the hot log from there on.

The table is read before the broker is asked, so that the log continues where the snapshot ends and
each record is seen once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nexo.errors import Unavailable
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake, StreamId, offsets_of
from nexo.lake.stored import StoredTable, find
from nexo.protocol import stream as wire

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Seen:
    """A stream at one moment: its table's snapshot, and the ranges of the log that follow it."""

    info: wire.StreamInfo
    table: StoredTable | None
    ranges: tuple[tuple[int, int], ...]
    """By partition: the first offset, and one past the last."""


def look(broker: HotLog, lake: Lake | None, name: str) -> Seen:
    for _ in range(_TRIES):
        created_ms = broker.describe(name).created_ms
        table = None if lake is None else find(lake, StreamId(name, created_ms))
        info = broker.describe(name)
        offsets = {} if table is None else offsets_of(table.properties)
        if info.created_ms == created_ms and not _is_behind(info, offsets):
            return Seen(info, table, tuple(_ranges(info, offsets, lake is None)))
    raise Unavailable(f"stream {name!r} changes faster than it can be read: try again")


def _is_behind(info: wire.StreamInfo, offsets: dict[int, int]) -> bool:
    """Whether the log has dropped records that this snapshot lacks; a newer one has them."""
    return any(
        number in offsets and part.hot_offset > offsets[number]
        for number, part in enumerate(info.partitions)
    )


def _ranges(
    info: wire.StreamInfo, offsets: dict[int, int], from_broker: bool
) -> Iterator[tuple[int, int]]:
    for number, part in enumerate(info.partitions):
        start = part.start_offset if from_broker else part.hot_offset
        first = max(start, offsets.get(number, 0))
        yield first, max(part.stable_offset, first)
