"""The views that queries have over streams, alike in DuckDB and in Spark.

===================== ========================================================================
view                  columns
===================== ========================================================================
stream_messages       topic, partition, offset, key, value, headers, timestamp
stream_offsets        group_id, topic, partition, offset, metadata, committed_at
stream_groups         group_id, kind, topics, generation, leader, members, assignment, updated_at
<stream>              partition, offset, timestamp, key, value, headers, value_type, typed columns
<stream>_latest       the newest record per key, of streams that compact
<stream>_dead_letters records whose value does not fit the typed columns, with the reason
===================== ========================================================================

`nexo.sql.engine` and `pyspark_nexo.views` make them; one contract suite checks both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import pyarrow as pa

from nexo.errors import InvalidInput
from nexo.hot_log import HotLog
from nexo.lake.own_columns import ROWS

MOST_STREAMS = 200
"""The most streams that ``stream_messages`` covers: plans have limits. With more of them, a query
says which it needs (``topic = …`` or ``topic in (…)``), or is refused."""
MESSAGES, OFFSETS, GROUPS = "stream_messages", "stream_offsets", "stream_groups"
MESSAGE = ("partition", "offset", "key", "value", "headers", "timestamp")
"""A stream's own columns in ``stream_messages``."""
SHOWN_AS_TEXT = ("key", "value")
"""…of which these are bytes: they are shown as text, or base64 if they are not UTF-8."""
_TEXT, _TIME = pa.string(), ROWS.field("timestamp").type
COLUMNS = {
    MESSAGES: pa.schema([
        ("topic", _TEXT),
        *((name, _TEXT if name in SHOWN_AS_TEXT else ROWS.field(name).type) for name in MESSAGE),
    ]),
    OFFSETS: pa.schema([
        ("group_id", _TEXT), ("topic", _TEXT), ("partition", pa.int32()), ("offset", pa.int64()),
        ("metadata", _TEXT), ("committed_at", _TIME),
    ]),
    GROUPS: pa.schema([
        ("group_id", _TEXT), ("kind", _TEXT), ("topics", _TEXT), ("generation", pa.int32()),
        ("leader", _TEXT), ("members", _TEXT), ("assignment", _TEXT), ("updated_at", _TIME),
    ]),
}  # fmt: skip
"""The columns of the views that are not one stream's."""


def check_moment(as_of: datetime | None) -> None:
    """`InvalidInput` for a time without a time zone."""
    if as_of is not None and as_of.tzinfo is None:
        raise InvalidInput(
            f"as_of = {as_of.isoformat()} has no time zone: add one, such as tzinfo=UTC"
        )


def offset_rows(broker: HotLog, streams: Iterable[str]) -> Iterator[tuple[object, ...]]:
    """``group_id, topic, partition, offset, metadata, committed_at`` of every group."""
    for stream, group in broker.groups_all(streams):
        for partition, each in enumerate(group.partitions):
            if each.floor > 0:
                yield group.name, stream, partition, each.floor - 1, None, None
    for ordered in broker.ordered_groups():
        for at in ordered.offsets:
            when = _moment(at.committed_ms)
            yield ordered.name, at.topic, at.partition, at.offset, at.metadata, when


def group_rows(broker: HotLog, streams: Iterable[str]) -> Iterator[tuple[object, ...]]:
    """The columns of ``stream_groups`` for every group; it was updated when it last committed."""
    for stream, group in broker.groups_all(streams):
        members, topics = json.dumps(group.consumers), json.dumps([stream])
        yield group.name, "shared", topics, group.generation, None, members, None, None
    for ordered in broker.ordered_groups():
        owners = [{"topic": t, "partition": p, "member": m} for t, p, m in ordered.owners]
        topics = json.dumps(sorted({topic for topic, _, _ in ordered.owners}))
        members = json.dumps(ordered.members)
        updated_ms = max((at.committed_ms for at in ordered.offsets), default=None)
        yield (
            ordered.name, "ordered", topics, ordered.generation, ordered.leader, members,
            json.dumps(owners), _moment(updated_ms),
        )  # fmt: skip


def _moment(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
